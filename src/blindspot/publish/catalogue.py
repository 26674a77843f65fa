"""What the study publishes: every table and figure, its title, caption and the files it reads.

Imports nothing heavy: Snakemake reads this at the start of every job, to plan one rule a figure.
The sentences here say what is drawn and how to read it; study, corpus, seeds and what is missing
are added from the collected results (`tables.caption`, `figures.caption`).
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from blindspot.declared import COLLECTED as DECLARED
from blindspot.publish.item import Item, named, two_initializations

if TYPE_CHECKING:
    from blindspot.config.study import Config

#: CSV files that `collect` writes next to `study.json`.
COLLECTED = tuple(DECLARED)


#: What of `collapse.csv` is shown, and how it is called.
COLLAPSE = (("shared_direction", "|mean u|²"), ("effective_rank", "effective rank"))

TABLES = named(
    Item(
        "main",
        "results.main",
        "Perplexity and state norm after the last loop",
        "Results",
        "Where the loss is placed x how states are read, and further controls of the norm. Token "
        "perplexity at the last loop and the norm of the state there, |H_K| (L2 over the width, "
        "mean over tokens), both on the validation split. Norm / raw is the norm divided by that "
        "of perloop-raw at the same size.",
        ("exits", "baselines", "norms"),
    ),
    Item(
        "loss-placement",
        "results.loss_placement",
        "Cross-entropy at every exit, by placement of the loss",
        "Depth",
        "Cross-entropy in nats a token when the state is read after loop k, on the validation "
        "split. Cells whose loss is terminal were never trained to be read before the last loop.",
        ("exits", "baselines"),
    ),
    Item(
        "depth",
        "results.depth",
        "Perplexity at every exit",
        "Depth",
        "Token perplexity when the state is read after loop k.",
        ("exits", "baselines"),
    ),
    Item(
        "perplexity",
        "perplexity.perplexity",
        "Perplexity by token, by word and by byte",
        "Results",
        "The same sum of nats at the last loop over the tokens that a protocol scores, over the "
        "words of the original text, and over its bytes; and the share of tokens that are UNK. "
        "Only the second and third can stand beside another tokenizer's.",
        ("exits", "baselines"),
    ),
    Item(
        "variable-depth",
        "results.variable_depth",
        "Perplexity and speed of every exit",
        "Depth",
        "Token perplexity on the validation split when the state is read after loop k, the CE that "
        "loops 2 to K save, and the measured throughput and speed-up of a forward pass that stops "
        "there (one for architectures of equal FLOPs whose quartiles overlap).",
        ("exits", "baselines", "throughput"),
    ),
    Item(
        "norms",
        "scale.norms",
        "State norm by loop",
        "Scale",
        "Mean L2 norm of the state before the first loop (H_0) and after each loop. Growth in "
        "loop 1 and in loops 2 to K are kept apart: only the second is drift of the recurrence. "
        "Loop 1's share of the growth is given where neither part is negative.",
        ("norms",),
    ),
    Item(
        "token-norms",
        "scale.token_norms",
        "State norm over tokens",
        "Scale",
        "Distribution over tokens of the state's L2 norm after the last loop: moments, quantiles, "
        "excess kurtosis of its logarithm (0 is log-normal), Hill's index of the top 1% (small is "
        "heavy), the share of the sum of squares in the top 1% of tokens, and the least share of "
        "tokens with half of it.",
        ("norms",),
    ),
    Item(
        "radial",
        "mechanism.radial",
        "Radial part of the gradients",
        "Mechanism",
        "Mean over tokens of |cos| between the gradient with respect to a state and the state "
        "itself. Immediate: the gradient of that loop's own loss, of which the visibility lemma "
        "speaks; recurrence: of all later losses, through the loops. The cross-entropy and the "
        "norm penalty are apart. A readout that normalizes sees the norm through its eps alone: "
        "beside it, eps = 0, on which the claims are judged, and the share eps / (v + eps) of a "
        "raw readout's radial part that eps lets through (v: mean square of a state's entries). "
        "float32 shows the floor of rounding.",
        ("gradients", "gradient_eps"),
    ),
    Item(
        "updates",
        "mechanism.updates",
        "Updates along the loops",
        "Mechanism",
        "Radial increment of an update (along the state before it), angular step x norm s of the "
        "state, and the angle between successive states, means over tokens. The activity lemma "
        "holds the first two for constant in s; whether they stay so along the loops is measured.",
        ("updates",),
    ),
    Item(
        "collapse",
        "by_loop.means_by_loop",
        "Collapse to one direction",
        "Mechanism",
        "Whether all tokens share one direction u = H / |H| after a loop: the squared length of "
        "the mean direction (1 where all tokens have the same one; above 0.9 counts as collapsed), "
        "and the effective rank of the directions (1 to the width). Freezing of directions that "
        "have collapsed is no sign of a readout that is blind to scale.",
        ("collapse",),
        values=COLLAPSE,
    ),
    Item(
        "clamp",
        "mechanism.clamp",
        "Clamping the scale",
        "Mechanism",
        "Change of CE (nats a token) at the last exit when each token's norm is held at its value "
        "after loop 1, or when only the radial part of each update is removed. Negligible within "
        "0.01: yes where the whole interval is, no where none of it is.",
        ("clamp",),
    ),
    Item(
        "halting",
        "mechanism.halting",
        "Calibrated halting",
        "Depth",
        "Mean loops when each token stops once its readout is sure enough; the threshold is "
        "calibrated on validation and scored on test. Oracle: states of all depths are those of a "
        "plain pass. Realised: a token's state is frozen where it stops, and is not computed on.",
        ("halting", "halting_timing"),
    ),
    Item(
        "throughput",
        "cost.throughput",
        "Throughput by exit depth",
        "Cost",
        "Tokens per second of a forward pass that stops after loop k, with one head at the exit: "
        "median and quartiles of repeated timings. Cells that differ in their loss alone share an "
        "architecture and so a row. Speed-up is against all K loops of the same architecture.",
        ("throughput",),
    ),
    Item(
        "cost",
        "cost.cost",
        "Cost of training",
        "Cost",
        "Tokens, floating-point operations (by formula; a loss at every loop costs more heads), "
        "hours and speed of training, and its share of the device's peak.",
        (),
    ),
    Item(
        "matched",
        "cost.compared",
        "Cells at equal budgets",
        "Training",
        "Validation CE at the last loop at equal optimizer steps, equal training FLOPs and equal "
        "device time, read off the training log linearly between its validation points, and the "
        "difference from perloop-rms, paired by seed. The budget is the least that a run used.",
        ("trajectory", "timing"),
    ),
    Item(
        "initialization",
        "scale.initialization",
        "Cells under two initializations",
        "Initialization",
        "Perplexity at the last loop, CE that loops 2 to K save, and norms, of cells that differ "
        "in their initialization alone (default: tied embedding N(0, 1)), on the validation split.",
        ("exits", "baselines", "norms"),
        when=two_initializations,
    ),
    Item(
        "provenance",
        "provenance.provenance",
        "Where the results come from",
        "Provenance",
        "Code, versions and machine of every training, measurement and timing; results that agree "
        "in all of it share a row. (changed): made with uncommitted changes. Resumed, requeued: "
        "how often trainings were taken up again, and their jobs queued again.",
        ("provenance",),
    ),
)

#: The ledger, `claims.csv` and `claims.md` (claims.py).
CLAIMS = Item(
    "claims",
    "claims",
    "Ledger of the paper's claims",
    "Claims",
    "What the paper claims, what it reports, what was measured here (mean over seeds with its "
    "interval), and whether that fulfils a criterion that was written down before the full study "
    "(those on freezing and equal FLOPs after a first demo). Perplexities are of the validation "
    "split, protocol full, but published ones of the protocol named beside them; halting is scored "
    "on the test split.",
    (
        "exits",
        "baselines",
        "norms",
        "gradients",
        "gradient_eps",
        "updates",
        "clamp",
        "halting",
        "throughput",
        "trajectory",
        "timing",
    ),
)

FIGURES = named(
    Item(
        "norm-over-training",
        "scale.norm_over_training",
        "State norm over training",
        "Scale",
        "Top: norm of the state after the last loop, |H_K| (L2 over the width, mean over the "
        "tokens of a training batch), by optimizer step. Bottom: the first logged step at which it "
        "is at least 100, 1,000 or 10,000, mean over the seeds that get there; open where not all "
        "do. At the log's first entry after step 1 it is an upper bound; left out where nearly all "
        "are there.",
        ("trajectory",),
        spread="range",
    ),
    Item(
        "norm-by-loop",
        "scale.norm_by_loop",
        "State norm by loop",
        "Scale",
        "Top: norm of the state before the first loop (H_0) and after each loop, on the "
        "validation split. Bottom: the factor by which loop 1 changes the norm (open) and by "
        "which loops 2 to K change it (filled); only the second is drift of the recurrence.",
        ("norms",),
    ),
    Item(
        "token-norm-survival",
        "tails.token_norm_survival",
        "Survival of token norms",
        "Scale",
        "Share of tokens whose state after the last loop is at least so large, both axes "
        "logarithmic: a power law is straight. Exact at the edges of histograms with 50 bins a "
        "decade and at the quantiles within them; markers at shares of 0.5, 0.1, 0.01, .. of the "
        "tokens. Norms of zero are not shown.",
        ("norm_hist", "norms"),
        spread="runs",
    ),
    Item(
        "radial-fraction",
        "mechanism.radial_fraction",
        "Radial fraction of the gradients, by loop",
        "Mechanism",
        "Mean over tokens of |cos| between the cross-entropy's gradient with respect to a state "
        "and the state, in float64. Top: immediate, of that loop's own loss (the visibility "
        "lemma's case; dotted where training had no loss there). Bottom: through the recurrence, "
        "of all later losses. Fine dots: a random direction; dashes: what float32 shows of blind "
        "readouts. The penalty's gradient is not shown (table radial has it).",
        ("gradients",),
    ),
    Item(
        "update-lemma",
        "mechanism.update_lemma",
        "Updates against the activity lemma",
        "Mechanism",
        "Left: at fixed directions and growing s, distance of angular step x s (markers) and of "
        "the radial increment (thin, without) from their limits; it must fall as 1/s (fine dots), "
        "which checks the instrument. Middle and right: both along the loops of the trained model, "
        "where s and direction change together; flat is what the lemma would have. Loops beyond "
        "a cell's trained K are thin and dotted, beyond every K shaded. Means over tokens. "
        "Triangles at the edge are points off the scale.",
        ("updates", "update_fixed"),
        spread="range",
    ),
    Item(
        "angle",
        "mechanism.angle",
        "Angle between successive states",
        "Mechanism",
        "Top: angle between the states before and after a loop, mean over tokens; the first loop "
        "(from the embedding) is dotted. Middle: angle between H_1 and the state after loop k: "
        "what all loops after the first change in a readout that sees directions alone. Bottom: "
        "the angle of loops 2, 3, .. over the norm s of the state before them, joined in the order "
        "of the loops; along grey lines it falls as 1/s, as the activity lemma has it at a fixed "
        "direction. Triangles at the edge are points off the scale.",
        ("updates",),
    ),
    Item(
        "perplexity-by-depth",
        "depth.perplexity_by_depth",
        "Perplexity by exit depth",
        "Depth",
        "Validation perplexity when the state is read after loop k. Top: all cells, logarithmic. "
        "Bottom: the range of the cells that were trained at every exit; triangles at the edge "
        "are points off the scale, without their bars. Exits beyond a cell's trained K are small "
        "and not joined to it, beyond every K shaded. An exit above the unigram model is worse "
        "than token frequencies alone.",
        ("exits", "baselines"),
    ),
    Item(
        "frontier",
        "depth.frontier",
        "Measured frontier of perplexity and throughput",
        "Depth",
        "Validation perplexity against measured throughput, one curve a cell over its exits. "
        "Cells of equal FLOPs at a depth, whose timings overlap, share one speed. Whiskers across: "
        "quartiles of the timings. Shaded: what some measured point beats in both speed and "
        "perplexity. Triangles at the edge are points off the scale.",
        ("exits", "baselines", "throughput"),
        spread="range",
    ),
    Item(
        "collapse",
        "by_loop.lines_by_loop",
        "Collapse to one direction, by loop",
        "Mechanism",
        "Top: squared length of the mean over tokens of the direction u = H / |H|, 1 where all "
        "tokens have the same one. Bottom: effective rank of the directions. Validation split.",
        ("collapse",),
        values=COLLAPSE,
    ),
    Item(
        "clamp",
        "interventions.clamp",
        "Clamping the scale",
        "Mechanism",
        "Change of CE (nats a token) by exit when each token's norm is held at its value after "
        "loop 1 (top), and when only the radial part of each update is removed (bottom). Linear "
        "within the shaded 0.01, which counts as negligible; logarithmic beyond.",
        ("clamp",),
    ),
    Item(
        "halting",
        "interventions.halting",
        "Halting: perplexity against mean loops",
        "Depth",
        "Perplexity on test relative to depth K against mean loops, as the threshold on margin "
        "(top) or entropy (bottom) moves: curves are the oracle's. Large markers: thresholds "
        "calibrated on validation for the target, scored as oracle (black edge) and as realised "
        "(half filled). Curves that leave by the top go on above.",
        ("halting", "halting_curve"),
        spread="range",
    ),
    Item(
        "training-curves",
        "training.training_curves",
        "Validation loss over training",
        "Training",
        "Cross-entropy (nats a token) at the last loop on the validation windows of the training "
        "log, by optimizer step and by training FLOPs; at the fine dots the cheapest cell ends, "
        "and all can be compared at equal FLOPs. The steep first fifth may leave the panel.",
        ("trajectory", "timing", "baselines"),
        spread="range",
    ),
    Item(
        "initialization",
        "initialization.initialization",
        "Is it the initialization?",
        "Initialization",
        "Norm by loop and perplexity by exit of cells that differ in their initialization alone: "
        "PyTorch's default, with a tied embedding N(0, 1), beside a small one. Validation split. "
        "Triangles at the edge are points off the scale.",
        ("exits", "baselines", "norms"),
        when=two_initializations,
    ),
)


#: What the names of a sweep's table and figure begin with.
SWEEP = "sweep-"


def of(items: Mapping[str, Item], config: "Config") -> dict[str, Item]:
    """The items of `TABLES` or `FIGURES` that a study with this config can have, and one for each
    of its sweeps."""
    found = {name: item for name, item in items.items() if item.when(config)}
    return found | {SWEEP + name: item(items, SWEEP + name) for name in config.sweeps}


def item(items: Mapping[str, Item], name: str) -> Item:
    """The table or figure of this name, in `items` or of a sweep. KeyError where there is none."""
    if name in items or not name.startswith(SWEEP):
        return items[name]
    return Item(
        name,
        "",  # tables/sweep.py and figures/sweep.py make it
        f"Sweep {name.removeprefix(SWEEP)}",
        "Sweeps",
        "CE (nats a token) and norm of the state at the last loop that each run was trained with, "
        "the CE that its loops 2 to K save (CE_1 - CE_K), and the angle (radians) from the state "
        "before the last loop to the one after it, against the value that was swept, on the "
        "validation split.",
        ("exits", "baselines", "norms", "updates"),
    )
