"""Quantities of how well a model predicts (quantities.py): cross-entropies, what depth gains,
comparisons at equal cost, halting, speed. One number a seed each."""

from collections.abc import Sequence
from math import inf

import numpy as np

from blindspot.publish.frames import Frames, Values, by_seed, minus, pick

#: Speeds this close count as equal on the frontier: cells that differ in the readout alone do
#: nearly the same work, and a timing is not better than that.
SAME_SPEED = 0.05
#: Trainings whose FLOPs differ by no more end at equal FLOPs.
SAME_FLOPS = 1e-3


def ce(f: Frames, size: str, cells: Sequence[str], at: int | None = None) -> Values:
    """CE at an exit, nats."""
    found, k = f.of("exits", size, cells[0], "ce"), at or f.loops(cells)
    return by_seed(found[k]) if k in found else {}


def gain_to_last(f: Frames, size: str, cells: Sequence[str], at: int | None = None) -> Values:
    """CE_1 - CE_K, nats."""
    return minus(ce(f, size, cells, 1), ce(f, size, cells))


def gain_over(f: Frames, size: str, cells: Sequence[str], at: int | None = None) -> Values:
    """CE_1 - CE_K of the first cell less that of the second, nats, paired by seed."""
    first, second = (gain_to_last(f, size, [cell]) for cell in cells)
    return minus(first, second)


def gain_to_best(f: Frames, size: str, cells: Sequence[str], at: int | None = None) -> Values:
    """CE_1 less the CE at the best exit, nats: the exit is the best one on validation, scored on
    test, so that choosing it is no gain of its own."""
    chosen = f.of("exits", size, cells[0], "ce")
    scored = f.of("test_exits", size, cells[0], "ce")
    found: Values = {}
    for seed in sorted(set(chosen.index) & set(scored.index)):
        own = scored.loc[seed]
        found[int(seed)] = float(own[1] - own[chosen.loc[seed].idxmin()])
    return found


def perplexity(f: Frames, size: str, cells: Sequence[str], at: int | None = None) -> Values:
    """Perplexity at an exit."""
    found, k = f.of("exits", size, cells[0], "ppl"), at or f.loops(cells)
    return by_seed(found[k]) if k in found else {}


def perplexity_gain(f: Frames, size: str, cells: Sequence[str], at: int | None = None) -> Values:
    """Perplexity at depth 1 less that at depth K."""
    return minus(perplexity(f, size, cells, 1), perplexity(f, size, cells))


def dominance(f: Frames, size: str, cells: Sequence[str], at: int | None = None) -> Values:
    """How much lower the first cell's CE is than the second's, where the second comes closest.

    Each exit of the second is set against the best exit of the first that is at least as fast
    (measured, within 5 %). -inf where there is none.
    """
    ours, theirs = (f.of("exits", size, cell, "ce") for cell in cells)
    t = f.throughput(size, cells)
    if not (len(ours) and len(theirs) and set(cells) <= set(t["cell"])):
        return {}
    fast, other = (t[t["cell"] == cell].set_index("k")["tokens_per_s"] for cell in cells)
    found: Values = {}
    for seed in sorted(set(ours.index) & set(theirs.index)):
        margins = []
        for k in other.index:
            reach = [j for j in fast.index if fast[j] >= other[k] * (1 - SAME_SPEED)]
            best = min((float(ours.loc[seed, j]) for j in reach), default=inf)
            margins.append(float(theirs.loc[seed, k]) - best)
        found[int(seed)] = min(margins)
    return found


def equal_flops(f: Frames, size: str, cells: Sequence[str], at: int | None = None) -> Values:
    """CE_K of the second cell less the first's, nats, paired by seed at equal training FLOPs: what
    the shorter of the two trainings used. Where both end there, CE is of the whole split, as every
    CE of the ledger; else it is read off both training logs, linearly between their validation
    points. No other cell has a part in it."""
    if any((size, cell) not in f.validation.index for cell in cells):
        return {}
    logs = [dict(list(f.validation.loc[[(size, cell)]].groupby("seed"))) for cell in cells]
    last = [ce(f, size, [cell]) for cell in cells]
    found: Values = {}
    for seed in sorted(set(logs[0]) & set(logs[1])):
        pair = [log[seed].sort_values("step") for log in logs]
        ends = [log["FLOPs"].max() for log in pair]
        if max(ends) <= min(ends) * (1 + SAME_FLOPS) and all(seed in values for values in last):
            found[int(seed)] = last[1][seed] - last[0][seed]
            continue
        ours, theirs = (float(np.interp(min(ends), log["FLOPs"], log["ce"])) for log in pair)
        found[int(seed)] = theirs - ours
    return found


def exits_by_placement(f: Frames, size: str, cells: Sequence[str], at: int | None = None) -> Values:
    """How much more CE falls from exit 1 to K in a terminal cell than in its per-loop partner:
    the smaller difference of two pairs (terminal, per-loop; terminal, per-loop), nats."""
    return pick(min, gain_over(f, size, cells[:2]), gain_over(f, size, cells[2:]))


def clamp_change(f: Frames, size: str, cells: Sequence[str], at: int | None = None) -> Values:
    """Change of CE at depth K when norms are held at their value after loop 1, nats."""
    return f.single("clamp", size, cells[0], "change_mean")


def halting_loops(f: Frames, size: str, cells: Sequence[str], at: int | None = None) -> Values:
    """Mean loops on test of halting calibrated on validation (margin, oracle)."""
    return f.single("halting", size, cells[0], "mean_loops")


def speed_ratio(f: Frames, size: str, cells: Sequence[str], at: int | None = None) -> Values:
    """Tokens/s of a pass that stops after loop 1 over those of one that stops at exit `at`. One
    timing a size: its median stands under 0, its lower and upper quartiles under 1 and 2."""
    t = f.throughput(size, cells).set_index("k")
    k = at or f.loops(cells)
    if not {1, k} <= set(t.index):
        return {}
    ends = [("", ""), ("_q25", "_q75"), ("_q75", "_q25")]
    return {
        i: float(t.loc[1, f"tokens_per_s{one}"] / t.loc[k, f"tokens_per_s{other}"])
        for i, (one, other) in enumerate(ends)
    }
