"""What the study publishes: every table and figure, its title, caption and the files it reads.

Imports nothing heavy: Snakemake reads this at the start of every job, to plan one rule a figure.
The sentences here say what is drawn and how to read it; study, corpus, seeds and what is missing
are added from the collected results (`tables.caption`, `figures.caption`).
"""

from dataclasses import dataclass

#: CSV files that `collect` writes next to `study.json`.
COLLECTED = (
    "runs",
    "trajectory",
    "timing",
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
    "throughput",
)


@dataclass(frozen=True)
class Item:
    """One table or figure.

    `reads` names collected CSVs without their ending; every item reads `study.json` as well.
    """

    name: str
    title: str
    category: str
    caption: str
    reads: tuple[str, ...]
    #: Of figures: `interval` draws bars of the t-interval, `range` bands over all seeds.
    spread: str = "interval"

    def inputs(self) -> list[str]:
        """Names of the collected files it is a function of; nothing else may change it."""
        return ["study.json", *(f"{name}.csv" for name in ("runs", *self.reads))]


def _named(*items: Item) -> dict[str, Item]:
    return {item.name: item for item in items}


TABLES = _named(
    Item(
        "main",
        "Perplexity and state norm after the last loop",
        "Results",
        "Token perplexity at the last loop and the norm of the state there, |H_K| (L2 over the "
        "width, mean over tokens), both on the validation split. Norm / raw is the norm divided "
        "by that of perloop-raw at the same size.",
        ("exits", "norms"),
    ),
    Item(
        "depth",
        "Perplexity at every exit",
        "Depth",
        "Token perplexity when the state is read after loop k.",
        ("exits",),
    ),
    Item(
        "norms",
        "State norm by loop",
        "Scale",
        "Mean L2 norm of the state before the first loop (H_0) and after each loop. Growth in "
        "loop 1 and in loops 2 to K are kept apart: only the second is drift of the recurrence. "
        "Loop 1's share of the growth is given where neither part is negative.",
        ("norms",),
    ),
    Item(
        "throughput",
        "Throughput by exit depth",
        "Cost",
        "Tokens per second of a forward pass that stops after loop k, with one head at the exit: "
        "median and quartiles of repeated timings. Cells that differ in their loss alone share an "
        "architecture and so a row. Speed-up is against all K loops of the same architecture.",
        ("throughput",),
    ),
)

#: The ledger, `claims.csv` and `claims.md` (claims.py).
CLAIMS = Item(
    "claims",
    "Ledger of the paper's claims",
    "Claims",
    "What the paper claims, what it reports, what was measured here (mean over seeds with its "
    "interval), and whether that fulfils a criterion that was written down before. Perplexities "
    "are of the validation split, protocol full; halting is scored on the test split.",
    ("exits", "norms", "gradients", "updates", "clamp", "halting", "throughput"),
)

FIGURES = _named(
    Item(
        "norm-over-training",
        "State norm over training",
        "Scale",
        "Norm of the state after the last loop, |H_K| (L2 over the width, mean over the tokens of "
        "a training batch), by optimizer step.",
        ("trajectory",),
        spread="range",
    ),
    Item(
        "norm-by-loop",
        "State norm by loop",
        "Scale",
        "Top: norm of the state before the first loop (H_0) and after each loop, on the "
        "validation split. Bottom: the factor by which loop 1 changes the norm (open) and by "
        "which loops 2 to K change it (filled); only the second is drift of the recurrence.",
        ("norms",),
    ),
    Item(
        "perplexity-by-depth",
        "Perplexity by exit depth",
        "Depth",
        "Validation perplexity when the state is read after loop k. Top: all cells, logarithmic. "
        "Bottom: the range of the cells that were trained at every exit; triangles at the edge "
        "are points off the scale. Exits beyond the trained K are shaded and not joined.",
        ("exits",),
    ),
    Item(
        "frontier",
        "Measured frontier of perplexity and throughput",
        "Depth",
        "Validation perplexity against measured throughput, one curve a cell over its exits. "
        "Whiskers across: quartiles of the timings. Shaded: what some measured point beats in "
        "both speed and perplexity. Triangles at the edge are points off the scale.",
        ("exits", "throughput"),
        spread="range",
    ),
    Item(
        "training-curves",
        "Validation loss over training",
        "Training",
        "Cross-entropy at the last loop on the validation windows of the training log, by "
        "optimizer step.",
        ("trajectory",),
        spread="range",
    ),
)
