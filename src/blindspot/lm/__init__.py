"""The looped language model: states, readouts, the objective; the device and precision."""
