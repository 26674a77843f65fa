"""What claims are about: one number a seed, from the collected results of one size.

Each quantity takes the frames, a size and cells (and the exit, where a claim names one), and gives
seed -> value for the seeds that have all it needs. A seed that lacks a part of it is left out: no
value comes from missing data. Unless a claim names another protocol, values are of the validation
split, protocol full. What is of norms, directions and gradients is here; what is of how well a
model predicts is in predictions.py.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf, log

import numpy as np
import pandas as pd

from blindspot.collect.stats import LEAST
from blindspot.publish import predictions, scales
from blindspot.publish.frames import Frames, Values, by_seed, over, pick

#: What has no logarithm counts as this: far below any norm, and any rounding of a cosine.
TINY = 1e-20

#: Frames, size, cells, exit (None: the last).
Measure = Callable[[Frames, str, Sequence[str], int | None], Values]


def _last(f: Frames, size: str, cell: str, value: str) -> Values:
    found = f.of("norms", size, cell, value)
    return by_seed(found[f.loops([cell])]) if len(found) else {}


def norm(f: Frames, size: str, cells: Sequence[str], at: int | None = None) -> Values:
    """|H_K|, mean over tokens."""
    return _last(f, size, cells[0], "l2_mean")


def norm_ratio(f: Frames, size: str, cells: Sequence[str], at: int | None = None) -> Values:
    """|H_K| of the first cell over that of the second."""
    return over(*(norm(f, size, [cell]) for cell in cells))


def norm_to_start(f: Frames, size: str, cells: Sequence[str], at: int | None = None) -> Values:
    """|H_K| / |H_0|."""
    by_k = f.of("norms", size, cells[0], "l2_mean")
    return by_seed(by_k[f.loops(cells)] / by_k[0]) if len(by_k) else {}


def growth_share(f: Frames, size: str, cells: Sequence[str], at: int | None = None) -> Values:
    """(|H_K| - |H_1|) / |H_K|: the part of the norm that loops 2 to K add; negative if it falls."""
    by_k = f.of("norms", size, cells[0], "l2_mean")
    if not len(by_k):
        return {}
    last = by_k[f.loops(cells)]
    return by_seed((last - by_k[1]) / last)


def drift_slope(f: Frames, size: str, cells: Sequence[str], at: int | None = None) -> Values:
    """Least-squares slope of log |H_K| on log step over the validation points of the second half of
    training, from half of the steps on, both ends included."""
    if (size, cells[0]) not in f.validation.index:
        return {}
    found = {}
    for seed, log_ in f.validation.loc[[(size, cells[0])]].groupby("seed"):
        late = log_[log_["step"] >= log_["step"].max() / 2]
        x, y = np.log(late["step"].to_numpy()), np.log(late["norm_mean"].to_numpy())
        if len(x) > 1 and np.isfinite(y).all():
            found[int(str(seed))] = float(np.polyfit(x, y, 1)[0])
    return found


def rms_norm(f: Frames, size: str, cells: Sequence[str], at: int | None = None) -> Values:
    """|H_K| / sqrt(d): comparable between widths."""
    return _last(f, size, cells[0], "rms_mean")


def received(f: Frames, size: str, cells: Sequence[str], at: int | None = None) -> Values:
    """RMS of the entries that the last loop is given, with what stands between the loops: of an
    RMSNorm without a gain v / (v + eps) to the half, v that of the mean norm. None where a trained
    gain follows, which no file has."""
    (own,) = [cell for cell in f.collected.study["cells"] if cell["name"] == cells[0]]
    by_k, k = f.of("norms", size, cells[0], "rms_mean"), f.loops(cells) - 1
    if k not in by_k or own["interloop"] == "rms-gain":
        return {}
    if own["interloop"] == "none":
        return by_seed(by_k[k])
    eps = (own.get("model") or {}).get("norm_eps") or f.collected.study["model"]["norm_eps"]
    return by_seed(by_k[k] / np.sqrt(by_k[k] ** 2 + eps))


def hill(f: Frames, size: str, cells: Sequence[str], at: int | None = None) -> Values:
    """Hill's tail index of |H_K| over tokens; a seed whose tail does not rise has none."""
    return _last(f, size, cells[0], "hill")


def tail_quantiles(f: Frames, size: str, cells: Sequence[str], at: int | None = None) -> Values:
    """p99 / p50 of |H_K| over tokens."""
    return over(*(_last(f, size, cells[0], f"l2_{name}") for name in ("p99", "p50")))


def spread_ratio(f: Frames, size: str, cells: Sequence[str], at: int | None = None) -> Values:
    """SD over tokens of log |H_K| in the first cell over that in the second."""
    a, b = (f.single("log_spread", size, cell, "sd") for cell in cells)
    return over(a, {seed: sd for seed, sd in b.items() if sd > 0})


def _radial(f: Frames, size: str, cell: str) -> pd.DataFrame:
    """Mean |cos| of the immediate CE's gradient with the state, by seed and trained exit. Of
    readouts that normalize it is that with their eps at 0: the lemma speaks of no other, and in
    small states eps alone is seen (1e-3 of the gradient at a norm of 0.3)."""
    found = f.of("gradients", size, cell, "cos_abs_mean")
    exact = f.of("without_eps", size, cell, "cos_abs_mean")
    return exact.reindex(index=found.index, columns=found.columns).fillna(found)


def radial_most(f: Frames, size: str, cells: Sequence[str], at: int | None = None) -> Values:
    """|cos| of the immediate CE's gradient with the state, at the exit where it is largest."""
    found = _radial(f, size, cells[0])
    return by_seed(found.max(axis=1)) if len(found) else {}


def radial_least(f: Frames, size: str, cells: Sequence[str], at: int | None = None) -> Values:
    """|cos| of the immediate CE's gradient with the state, at the exit where it is least."""
    found = _radial(f, size, cells[0])
    return by_seed(found.min(axis=1)) if len(found) else {}


def radial_chance(f: Frames, size: str, cells: Sequence[str], at: int | None = None) -> Values:
    """Mean |cos| of a random direction with the state, at this width."""
    found = f.of("gradients", size, cells[0], "chance_cos_abs")
    return by_seed(found.max(axis=1)) if len(found) else {}


def _range(f: Frames, size: str, cell: str, value: str) -> Values:
    found = f.of("updates", size, cell, value)
    if found.shape[1] < 2:  # with K = 2 there is one update to speak of, which is always constant
        return {}
    return by_seed((found.max(axis=1) - found.min(axis=1)) / found.mean(axis=1).abs())


def angular_range(f: Frames, size: str, cells: Sequence[str], at: int | None = None) -> Values:
    """(max - min) / mean of angular step x norm over loops 2 to K."""
    return _range(f, size, cells[0], "angular_step_norm_mean")


def increment_range(f: Frames, size: str, cells: Sequence[str], at: int | None = None) -> Values:
    """(max - min) / |mean| of the radial increment over loops 2 to K."""
    return _range(f, size, cells[0], "radial_mean")


def _last_update(f: Frames, size: str, cell: str, value: str) -> Values:
    found, k = f.of("updates", size, cell, value), f.loops([cell]) - 1
    return by_seed(found[k]) if k in found else {}


def freezing(f: Frames, size: str, cells: Sequence[str], at: int | None = None) -> Values:
    """Angle from H_{K-1} to H_K in the second cell over that in the first."""
    first, second = (_last_update(f, size, cell, "angle_mean") for cell in cells)
    return over(second, first)


def scale_share(f: Frames, size: str, cells: Sequence[str], at: int | None = None) -> Values:
    """|H_{K-1}| in the first cell over that in the second: what a step of the same length would
    freeze by, since an angle is a step over the norm of the state before it."""
    return over(*(_last_update(f, size, cell, "norm_mean") for cell in cells))


def scale_by_readout(f: Frames, size: str, cells: Sequence[str], at: int | None = None) -> Values:
    """Smaller of the two ratios of |H_K| in pairs (rms, raw; rms, raw)."""
    return pick(min, norm_ratio(f, size, cells[:2]), norm_ratio(f, size, cells[2:]))


@dataclass(frozen=True)
class Quantity:
    """One number a seed, how it is averaged and shown, and what it asks of a model."""

    measure: Measure
    unit: str
    #: What stands before it where it is shown beside another quantity.
    label: str = ""
    #: Values spread by factors, so means and intervals are taken of their logarithms.
    log: bool = False
    decimals: int = 2
    #: It speaks of how well a model predicts: one that has learned nothing has none.
    predicts: bool = False
    #: It speaks of directions that stand still, which those that have collapsed do anyway.
    freezes: bool = False
    #: No value is beyond, so no interval is. `loops`: at most K.
    least: float = -inf
    most: float = inf
    loops: bool = False
    #: Measured once a size, not once a seed: shown with the quartiles of its timings.
    timed: bool = False

    def scale(self, value: float) -> float:
        """A value on the scale that is averaged."""
        return log(max(value, TINY)) if self.log else value


QUANTITIES: dict[str, Quantity] = {
    "drift-slope": Quantity(drift_slope, "(slope)", decimals=3),
    "norm": Quantity(norm, "|H_K|", log=True, decimals=1),
    "norm-ratio": Quantity(norm_ratio, "times", "ratio of |H_K|", log=True, decimals=1),
    "norm-to-start": Quantity(norm_to_start, "times", "|H_K| / |H_0|", log=True),
    "growth-share": Quantity(growth_share, "of |H_K|", most=1.0),
    "rms-norm": Quantity(rms_norm, "a coordinate", "|H_K| / √d", log=True),
    "received": Quantity(received, "a coordinate", log=True),
    "spread-ratio": Quantity(spread_ratio, "times", log=True),
    "hill": Quantity(hill, "tail index", "tail index of the first cell", log=True),
    "tail-quantiles": Quantity(tail_quantiles, "times", "its p99 / p50", log=True),
    "radial-most": Quantity(radial_most, "|cos|", log=True, most=1.0),
    "radial-least": Quantity(radial_least, "|cos|", log=True, decimals=4, most=1.0),
    "radial-chance": Quantity(radial_chance, "|cos|", "by chance", log=True, decimals=4),
    "angular-range": Quantity(angular_range, "relative range", least=0.0),
    "increment-range": Quantity(increment_range, "relative range", least=0.0),
    "freezing": Quantity(freezing, "times", log=True, decimals=1, freezes=True),
    "scale-share": Quantity(
        scale_share, "times", "of it by the scale (ratio of |H_{K-1}|)", log=True, decimals=1
    ),
    "scale-visible": Quantity(scales.visible, "nats", decimals=3, predicts=True),
    "scale-restoring": Quantity(scales.restoring, "nats", decimals=3, predicts=True),
    "lemma-ratio": Quantity(scales.lemma_ratio, "times", log=True),
    "lemma-slope": Quantity(scales.lemma_slope, "(slope)", decimals=3),
    "scale-by-readout": Quantity(scale_by_readout, "times", log=True, decimals=1),
    "ce": Quantity(predictions.ce, "nats", decimals=3, predicts=True, least=0.0),
    "gain-to-last": Quantity(predictions.gain_to_last, "nats", decimals=4, predicts=True),
    "gain-over": Quantity(predictions.gain_over, "nats", decimals=4, predicts=True),
    "gain-to-best": Quantity(predictions.gain_to_best, "nats", decimals=4, predicts=True),
    "equal-flops": Quantity(predictions.equal_flops, "nats", decimals=4, predicts=True),
    "dominance": Quantity(predictions.dominance, "nats", decimals=4, predicts=True),
    "exits-by-placement": Quantity(predictions.exits_by_placement, "nats", predicts=True),
    "clamp-change": Quantity(predictions.clamp_change, "nats", decimals=4, predicts=True),
    "halting-loops": Quantity(
        predictions.halting_loops, "loops", predicts=True, least=1.0, loops=True
    ),
    "perplexity": Quantity(
        predictions.perplexity, "perplexity", log=True, predicts=True, least=LEAST["ppl"]
    ),
    "perplexity-gain": Quantity(
        predictions.perplexity_gain, "perplexity", decimals=3, predicts=True
    ),
    "speed-ratio": Quantity(predictions.speed_ratio, "times", log=True, timed=True),
}
