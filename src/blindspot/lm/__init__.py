"""The looped language model: states, readouts, the objective."""
