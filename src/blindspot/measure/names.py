"""The files that `blindspot measure` leaves behind. No heavy imports: Snakemake plans with them."""

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
