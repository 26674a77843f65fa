"""What a study would run and cost, how far it is, what lies on disk, is the cluster ready."""
