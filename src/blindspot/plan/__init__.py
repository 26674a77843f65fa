"""What a study would run and cost, how far it is, and what of it lies on disk."""
