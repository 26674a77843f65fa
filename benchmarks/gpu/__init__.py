"""The benchmark behind benchmarks/gpu.sh; docs/gpu.md says what comes out."""
