"""What claims are about: one number a seed, from the collected results of one size.

Each quantity takes the frames, a size and cells, and gives seed -> value for the seeds that have
all it needs. A seed that lacks a part of it is left out: no value comes from missing data. Unless
a claim names another protocol, values are of the validation split, protocol full.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf, log
from typing import Any

import pandas as pd

from blindspot.collect.collected import Collected
from blindspot.collect.stats import LEAST
from blindspot.publish.matched import costs, noise_sd, readings
from blindspot.publish.speeds import speeds

#: Speeds this close count as equal on the frontier: cells that differ in the readout alone do
#: nearly the same work, and a timing is not better than that.
SAME_SPEED = 0.05

#: What has no logarithm counts as this: far below any norm, and any rounding of a cosine.
TINY = 1e-20

Values = dict[int, float]


def without_eps(c: Collected) -> pd.DataFrame:
    """`cos_abs_mean` of each run and normalized depth with the readout's eps at 0: over tokens, as
    gradients.csv has it with eps. gradient_eps.csv has it by bucket of the norm.

    `eps_share`, of RMSNorm readouts: mean over tokens of eps / (v + eps), v = |H|^2 / d. That part
    of a raw readout's radial gradient is left by eps. No v of single tokens is kept: it is that of
    the middle of each bucket, half a decade of norms wide, so at most a factor of sqrt(10) from a
    token's own, and so is the share."""
    # Of raw readouts alone the file has no rows, and so no types.
    numbers = ["eps", "norm_low", "norm_high", "tokens", "cos_abs_mean_eps0"]
    eps = c.frame("gradient_eps").astype(dict.fromkeys(numbers, "float64"))
    keys = ["size", "cell", "seed", "k"]
    width = c.frame("gradients").groupby("size")["width"].first()
    v = eps["norm_low"] * eps["norm_high"] / eps["size"].map(width).astype("float64")
    layernorm = {cell["name"] for cell in c.study["cells"] if cell["readout"] == "layernorm"}
    share = (eps["eps"] / (v + eps["eps"])).mask(eps["cell"].isin(layernorm))
    weighted = eps[keys].assign(
        cos_abs_mean=eps["cos_abs_mean_eps0"] * eps["tokens"], eps_share=share * eps["tokens"]
    )
    total = weighted.groupby(keys)[["cos_abs_mean", "eps_share"]].sum(min_count=1)
    return total.div(eps.groupby(keys)["tokens"].sum(), axis=0).reset_index()


class Frames:
    """The collected frames, narrowed to what quantities ask for; exits are of one protocol."""

    def __init__(self, collected: Collected, protocol: str = "full") -> None:
        self.collected = collected
        self.protocol = protocol

    def loops(self, cells: Sequence[str]) -> int:
        """The K of the first of the cells; of the study where it has no such cell."""
        return self.collected.loops_of.get(cells[0], self.collected.deepest)

    def study(self, cells: Sequence[str]) -> dict[str, Any]:
        """What study.json says, with the K of these cells."""
        return self.collected.study | {"loops": self.loops(cells)}

    @cached_property
    def exits(self) -> pd.DataFrame:
        e = self.collected.frame("exits")
        chosen = (e["split"] == "validation") & (e["protocol"] == self.protocol)
        return self.collected.trained(e[chosen]).set_index(["size", "cell"]).sort_index()

    @cached_property
    def norms(self) -> pd.DataFrame:
        n = self.collected.frame("norms")
        n = self.collected.trained(n[n["split"] == "validation"])
        return n.set_index(["size", "cell"]).sort_index()

    @cached_property
    def gradients(self) -> pd.DataFrame:
        """|cos| of the immediate CE at trained exits, in float64."""
        g = self.collected.frame("gradients")
        chosen = (g["source"] == "ce") & (g["path"] == "immediate") & (g["dtype"] == "float64")
        g = g[chosen & (g["trained"] == 1)]
        return g.set_index(["size", "cell"]).sort_index()

    @cached_property
    def without_eps(self) -> pd.DataFrame:
        """|cos| as in `gradients`, of readouts that normalize, with their eps set to 0."""
        return without_eps(self.collected).set_index(["size", "cell"]).sort_index()

    @cached_property
    def updates(self) -> pd.DataFrame:
        """Of loops 2 to K."""
        u = self.collected.frame("updates")
        u = u[(u["k"] >= 1) & (u["k"] < self.collected.own(u))]
        return u.set_index(["size", "cell"]).sort_index()

    @cached_property
    def clamp(self) -> pd.DataFrame:
        c = self.collected.frame("clamp")
        c = self.collected.last(c[c["intervention"] == "norm"])
        return c.set_index(["size", "cell"]).sort_index()

    @cached_property
    def halting(self) -> pd.DataFrame:
        h = self.collected.frame("halting")
        h = h[(h["score"] == "margin") & (h["variant"] == "oracle")]
        return h.set_index(["size", "cell"]).sort_index()

    @cached_property
    def costs(self) -> pd.DataFrame:
        return costs(self.collected)

    @cached_property
    def throughput(self) -> pd.DataFrame:
        t = speeds(self.collected)
        return self.collected.trained(t).set_index(["size", "cell"]).sort_index()

    def of(self, name: str, size: str, cell: str, value: str) -> pd.DataFrame:
        """`value` with one row a seed and one column a k; no rows where there is nothing."""
        frame: pd.DataFrame = getattr(self, name)
        if (size, cell) not in frame.index:
            return pd.DataFrame()
        return frame.loc[[(size, cell)]].pivot(index="seed", columns="k", values=value)

    def single(self, name: str, size: str, cell: str, value: str) -> Values:
        """`value` by seed, of a frame with one row a seed."""
        frame: pd.DataFrame = getattr(self, name)
        if (size, cell) not in frame.index:
            return {}
        rows = frame.loc[[(size, cell)]].dropna(subset=[value])
        return {int(s): float(v) for s, v in zip(rows["seed"], rows[value], strict=True)}


def _values(series: pd.Series) -> Values:
    return {int(str(seed)): float(value) for seed, value in series.dropna().items()}


def _worst(pick: Callable[..., float], *parts: Values) -> Values:
    """By seed, `pick` of the parts' values, where all parts have that seed."""
    common = set.intersection(*(set(part) for part in parts))
    return {seed: pick(part[seed] for part in parts) for seed in sorted(common)}


def _last(f: Frames, size: str, cell: str, value: str) -> Values:
    found = f.of("norms", size, cell, value)
    return _values(found[f.loops([cell])]) if len(found) else {}


def norm_ratio(f: Frames, size: str, cells: Sequence[str]) -> Values:
    """|H_K| of the first cell over that of the second."""
    a, b = (_last(f, size, cell, "l2_mean") for cell in cells)
    return {seed: a[seed] / b[seed] for seed in sorted(set(a) & set(b))}


def growth_share(f: Frames, size: str, cells: Sequence[str]) -> Values:
    """(|H_K| - |H_1|) / |H_K|: the part of the norm that loops 2 to K add; negative if it falls."""
    by_k = f.of("norms", size, cells[0], "l2_mean")
    if not len(by_k):
        return {}
    last = by_k[f.loops(cells)]
    return _values((last - by_k[1]) / last)


def rms_norm(f: Frames, size: str, cells: Sequence[str]) -> Values:
    """|H_K| / sqrt(d): comparable between widths."""
    return _last(f, size, cells[0], "rms_mean")


def hill(f: Frames, size: str, cells: Sequence[str]) -> Values:
    """Hill's tail index of |H_K| over tokens; a seed whose tail does not rise has none."""
    found = f.of("norms", size, cells[0], "hill")
    return _values(found[f.loops(cells)]) if len(found) else {}


def _radial(f: Frames, size: str, cell: str) -> pd.DataFrame:
    """Mean |cos| of the immediate CE's gradient with the state, by seed and trained exit. Of
    readouts that normalize it is that with their eps at 0: the lemma speaks of no other, and in
    small states eps alone is seen (1e-3 of the gradient at a norm of 0.3)."""
    found = f.of("gradients", size, cell, "cos_abs_mean")
    exact = f.of("without_eps", size, cell, "cos_abs_mean")
    return exact.reindex(index=found.index, columns=found.columns).fillna(found)


def radial_most(f: Frames, size: str, cells: Sequence[str]) -> Values:
    """|cos| of the immediate CE's gradient with the state, at the exit where it is largest."""
    found = _radial(f, size, cells[0])
    return _values(found.max(axis=1)) if len(found) else {}


def radial_least(f: Frames, size: str, cells: Sequence[str]) -> Values:
    """|cos| of the immediate CE's gradient with the state, at the exit where it is least."""
    found = _radial(f, size, cells[0])
    return _values(found.min(axis=1)) if len(found) else {}


def gain_to_last(f: Frames, size: str, cells: Sequence[str]) -> Values:
    """CE_1 - CE_K, nats."""
    ce = f.of("exits", size, cells[0], "ce")
    return _values(ce[1] - ce[f.loops(cells)]) if len(ce) else {}


def gain_to_best(f: Frames, size: str, cells: Sequence[str]) -> Values:
    """CE_1 - min CE over the exits, nats."""
    ce = f.of("exits", size, cells[0], "ce")
    return _values(ce[1] - ce.min(axis=1)) if len(ce) else {}


def perplexity(f: Frames, size: str, cells: Sequence[str]) -> Values:
    """Perplexity at depth K."""
    ppl = f.of("exits", size, cells[0], "ppl")
    return _values(ppl[f.loops(cells)]) if len(ppl) else {}


def perplexity_gain(f: Frames, size: str, cells: Sequence[str]) -> Values:
    """Perplexity at depth 1 less that at depth K."""
    ppl = f.of("exits", size, cells[0], "ppl")
    return _values(ppl[1] - ppl[f.loops(cells)]) if len(ppl) else {}


def dominance(f: Frames, size: str, cells: Sequence[str]) -> Values:
    """How much lower the first cell's CE is than the second's, where the second comes closest.

    Each exit of the second is set against the best exit of the first that is at least as fast
    (measured, within 5 %). -inf where there is none.
    """
    first, second = cells
    ours, theirs = (f.of("exits", size, cell, "ce") for cell in cells)
    t = f.throughput
    if not (len(ours) and len(theirs) and (size, first) in t.index and (size, second) in t.index):
        return {}
    fast, other = (t.loc[[(size, c)]].set_index("k")["tokens_per_s"] for c in cells)
    found: Values = {}
    for seed in sorted(set(ours.index) & set(theirs.index)):
        margins = []
        for k in other.index:
            reach = [j for j in fast.index if fast[j] >= other[k] * (1 - SAME_SPEED)]
            best = min((float(ours.loc[seed, j]) for j in reach), default=inf)
            margins.append(float(theirs.loc[seed, k]) - best)
        found[int(seed)] = min(margins)
    return found


def clamp_change(f: Frames, size: str, cells: Sequence[str]) -> Values:
    """Change of CE at depth K when norms are held at their value after loop 1, nats."""
    return f.single("clamp", size, cells[0], "change_mean")


def _range(f: Frames, size: str, cell: str, value: str) -> Values:
    found = f.of("updates", size, cell, value)
    if found.shape[1] < 2:  # with K = 2 there is one update to speak of, which is always constant
        return {}
    return _values((found.max(axis=1) - found.min(axis=1)) / found.mean(axis=1).abs())


def angular_range(f: Frames, size: str, cells: Sequence[str]) -> Values:
    """(max - min) / mean of angular step x norm over loops 2 to K."""
    return _range(f, size, cells[0], "angular_step_norm_mean")


def increment_range(f: Frames, size: str, cells: Sequence[str]) -> Values:
    """(max - min) / |mean| of the radial increment over loops 2 to K."""
    return _range(f, size, cells[0], "radial_mean")


def freezing(f: Frames, size: str, cells: Sequence[str]) -> Values:
    """Angle from H_{K-1} to H_K in the second cell over that in the first."""
    frames = [f.of("updates", size, cell, "angle_mean") for cell in cells]
    lasts = [f.loops([cell]) - 1 for cell in cells]
    if any(k not in frame for k, frame in zip(lasts, frames, strict=True)):
        return {}
    a, b = (_values(frame[k]) for k, frame in zip(lasts, frames, strict=True))
    return {seed: b[seed] / a[seed] for seed in sorted(set(a) & set(b))}


def matched_difference(f: Frames, size: str, cells: Sequence[str]) -> Values:
    """CE at the last loop of the second cell less the first's, nats, at equal training FLOPs, read
    off the training log's validation points (matched.py), over the spread of a replicate: standard
    deviation over seeds, pooled over cells."""
    points = f.costs[f.costs["size"] == size]
    if points.empty:
        return {}
    _, frame = readings(points, "FLOPs")
    noise = noise_sd(frame)
    if not noise > 0:
        return {}
    ours, theirs = (frame[frame["cell"] == cell].set_index("seed")["ce"] for cell in cells)
    return _values((theirs - ours) / noise)


def exits_by_placement(f: Frames, size: str, cells: Sequence[str]) -> Values:
    """How much more CE falls from exit 1 to K in a terminal cell than in its per-loop partner:
    the smaller difference of two pairs (terminal, per-loop; terminal, per-loop), nats."""
    a, b, c, d = (gain_to_last(f, size, [cell]) for cell in cells)
    return _worst(min, _minus(a, b), _minus(c, d))


def scale_by_readout(f: Frames, size: str, cells: Sequence[str]) -> Values:
    """Smaller of the two ratios of |H_K| in pairs (rms, raw; rms, raw)."""
    return _worst(min, norm_ratio(f, size, cells[:2]), norm_ratio(f, size, cells[2:]))


def _minus(a: Values, b: Values) -> Values:
    return {seed: a[seed] - b[seed] for seed in sorted(set(a) & set(b))}


def halting_loops(f: Frames, size: str, cells: Sequence[str]) -> Values:
    """Mean loops on test of halting calibrated on validation (margin, oracle)."""
    return f.single("halting", size, cells[0], "mean_loops")


@dataclass(frozen=True)
class Quantity:
    """`log`: values spread by factors, so means and intervals are taken of their logarithms.
    `predicts`: they speak of how well a model predicts, so one that has learned nothing has none.
    """

    measure: Callable[[Frames, str, Sequence[str]], Values]
    unit: str
    log: bool = False
    decimals: int = 2
    predicts: bool = False
    #: No interval ends below.
    least: float = -inf

    def scale(self, value: float) -> float:
        """A value on the scale that is averaged."""
        return log(max(value, TINY)) if self.log else value


QUANTITIES: dict[str, Quantity] = {
    "norm-ratio": Quantity(norm_ratio, "times", log=True, decimals=1),
    "growth-share": Quantity(growth_share, "of |H_K|"),
    "rms-norm": Quantity(rms_norm, "a coordinate", log=True),
    "hill": Quantity(hill, "tail index", log=True),
    "radial-most": Quantity(radial_most, "|cos|", log=True),
    "radial-least": Quantity(radial_least, "|cos|", log=True, decimals=4),
    "gain-to-last": Quantity(gain_to_last, "nats", decimals=4, predicts=True),
    "gain-to-best": Quantity(gain_to_best, "nats", decimals=4, predicts=True),
    "perplexity": Quantity(perplexity, "perplexity", log=True, predicts=True, least=LEAST["ppl"]),
    "perplexity-gain": Quantity(perplexity_gain, "perplexity", decimals=3, predicts=True),
    "dominance": Quantity(dominance, "nats", decimals=4, predicts=True),
    "matched-difference": Quantity(matched_difference, "replicate SD", predicts=True),
    "clamp-change": Quantity(clamp_change, "nats", decimals=4, predicts=True),
    "angular-range": Quantity(angular_range, "relative range"),
    "increment-range": Quantity(increment_range, "relative range"),
    "freezing": Quantity(freezing, "times", log=True, decimals=1),
    "exits-by-placement": Quantity(exits_by_placement, "nats", predicts=True),
    "scale-by-readout": Quantity(scale_by_readout, "times", log=True, decimals=1),
    "halting-loops": Quantity(halting_loops, "loops", predicts=True),
}
