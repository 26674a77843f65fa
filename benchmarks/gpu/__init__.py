"""The benchmark behind benchmarks/gpu.sh; docs/gpu.md says what comes out."""

from gpu import standin

# Before anything imports blindspot.config.spec.
standin.install()
