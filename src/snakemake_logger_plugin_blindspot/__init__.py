"""`--logger blindspot`, in the place and under the name by which Snakemake finds it."""

from blindspot.plan.terminal import LogHandler

__all__ = ["LogHandler"]
