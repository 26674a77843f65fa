"""The files that `blindspot measure` leaves behind, and the names in them. No heavy imports:
Snakemake plans with them."""

from typing import Literal, get_args

#: How the tokens of a split are scored; docs/perplexity.md defines each.
Protocol = Literal["full", "paper", "release-figure"]
PROTOCOLS: tuple[str, ...] = get_args(Protocol)

#: Names of the CSVs, without their ending; measure.json is written after all of them.
FILES = (
    "baselines",
    "exits",
    "norms",
    "norm_hist",
    "norm_groups",
    "norm_growth",
    "gradients",
    "gradient_eps",
    "updates",
    "update_fixed",
    "clamp",
    "halting",
    "halting_curve",
    "halting_timing",
)
