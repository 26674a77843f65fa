"""From a specification to weights, through whatever interrupts it."""
