"""The verdict in sentences: what was found, and what it would mean for whoever has the model."""

from blindspot.audit.observe import Observed
from blindspot.audit.report import DRIFT, Boundary, Depth, Estimate, Verdict


def plain(x: float, digits: int = 3) -> str:
    """A number to so many digits; 1234.5 as 1,234."""
    return f"{x:,.0f}" if 1000 <= abs(x) < 1e7 else f"{x:.{digits}g}"


def number(x: Estimate) -> str:
    """A value with its interval."""
    if x.value is None:
        return "not finite"
    if x.low is None or x.high is None:
        return plain(x.value)
    return f"{plain(x.value)} ({plain(x.low)} to {plain(x.high)})"


def short(x: Estimate | None) -> str:
    """A value and half of its interval, for narrow tables."""
    if x is None or x.value is None:
        return ""
    if x.low is None or x.high is None:
        return plain(x.value)
    half = (x.high - x.low) / 2
    return f"{plain(x.value)} ±{f'{half:,.0f}' if half >= 10 else f'{half:.1g}'}"


def places(ks: list[int]) -> str:
    """1, 2, 3, 5 as `1 to 3 and 5`."""
    runs: list[list[int]] = []
    for k in ks:
        if runs and k == runs[-1][-1] + 1:
            runs[-1].append(k)
        else:
            runs.append([k])
    parts = [
        str(r[0]) if len(r) == 1 else f"{r[0]} {'and' if len(r) == 2 else 'to'} {r[-1]}"
        for r in runs
    ]
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


def sentences(
    verdict: Verdict, boundaries: list[Boundary], depths: list[Depth], seen: Observed
) -> list[str]:
    """One finding a sentence, the most important first."""
    found = [_blind(verdict, boundaries, seen), _drift(verdict)]
    found += [_together(verdict)]
    if verdict.growth_beyond is not None:
        found.append(_beyond(verdict, seen))
    found.append(_exits(verdict, depths, seen))
    found += _collapse(depths, seen)
    unsure = [b.k for b in boundaries if not b.sure]
    if unsure:
        found.append(
            f"An interval crosses a threshold at boundary {places(unsure)}: look at more text "
            f"(--tokens) before relying on the verdict there."
        )
    return found


def _blind(verdict: Verdict, boundaries: list[Boundary], seen: Observed) -> str:
    exponents = [b.carried_exponent.value for b in boundaries]
    kls = [b.visible_kl.value for b in boundaries]
    carried = f"exponent {_span(exponents)}"
    read = f"median KL {_span(kls)} nats at twice or half the size"
    if verdict.blind == "yes":
        where = f"boundary {places(verdict.blind_at)} of {len(boundaries)}"
        if len(verdict.blind_at) == len(boundaries):
            where = "every boundary"
        if len(boundaries) < seen.loops - 1:
            where += f" looked at ({len(boundaries)} of {seen.loops - 1})"
        return (
            f"Blind at {where}: the next loop carries the state's scale ({carried}) and what is "
            f"read there does not show it ({read}). A loss at these depths cannot hold the norm."
        )
    if verdict.blind == "partly":
        return (
            f"Partly blind: what is read does not show the scale ({read}), and the next loop keeps "
            f"part of it ({carried})."
        )
    hidden = [b for b in boundaries if not b.visible]
    if not hidden:
        return (
            f"Not blind: what is read between loops shows the state's scale ({read}), so a loss "
            f"there can hold the norm. The next loop's exponent is {_span(exponents)}."
        )
    if len(hidden) == len(boundaries):
        return (
            f"Not blind: what is read does not show the scale ({read}), but the next loop does not "
            f"carry it either ({carried}): it is removed between loops."
        )
    return (
        f"Not blind: the scale is read at boundary {places(verdict.visible_at)} ({read}), and "
        f"removed by the next loop elsewhere ({carried})."
    )


def _span(found: list[float | None]) -> str:
    values = [x for x in found if x is not None]
    if not values:
        return "not finite"
    low, high = (f"{x:.2g}" for x in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def _drift(verdict: Verdict) -> str:
    rate = number(verdict.growth.rate)
    where = {
        "loop 1": " Nearly all of the norm is made in loop 1, from H_0; the recurrence keeps it.",
        "the recurrence": "",
        "both": " Loop 1 grows it too.",
        "neither": "",
    }[verdict.norm_made_in]
    if verdict.drifting:
        return f"Drifting: the mean norm grows {rate}x a loop from loop 1 to K.{where}"
    value = verdict.growth.rate.value
    if value is not None and value < 1 / DRIFT:
        return f"Not drifting: the mean norm shrinks, to {rate} of itself a loop.{where}"
    return f"Not drifting: from loop to loop the mean norm becomes {rate} times itself.{where}"


def _together(verdict: Verdict) -> str:
    """What the two answers mean for the user."""
    blind = verdict.blind != "no"
    if blind and verdict.drifting:
        return (
            "For you: nothing in a loss that reads these states opposes the growth. Penalize the "
            "norm, read the raw state, or normalize between loops."
        )
    if blind:
        return (
            "For you: the norm is held, but not by what is read; something else (a penalty, weight "
            "decay, little training) holds it. Watch it if you train on, or loop further."
        )
    if verdict.drifting and not verdict.visible_at:
        return (
            "For you: each loop writes a larger state than the one before, but no loop sees how "
            "large the last one was, so the growth does not feed itself."
        )
    if verdict.drifting:
        return (
            "For you: the norm grows in full view of the loss, so it is what training chose, not a "
            "blind spot."
        )
    return "For you: the norm is no concern here."


def _beyond(verdict: Verdict, seen: Observed) -> str:
    assert verdict.growth_beyond is not None
    last = len(seen.norms) - 1
    rate = number(verdict.growth_beyond.rate)
    text = f"Beyond the trained {seen.loops} loops, to {last}, the norm becomes {rate} times itself"
    if verdict.growth_beyond.drifting:
        text += ", drifting there"
    if seen.overflow is not None:
        text += f"; at loop {seen.overflow} it is no longer finite"
    return text + "."


def _exits(verdict: Verdict, depths: list[Depth], seen: Observed) -> str:
    ce = {d.k: d.ce.value for d in depths if d.ce is not None and d.ce.value is not None}
    K = seen.loops
    if not {1, K} <= ce.keys():
        return "Cross-entropy is not finite at some exit."
    gap = f"{ce[1]:.3f} nats at exit 1, {ce[K]:.3f} at exit {K}"
    shifts = [d.shift.value for d in depths if d.shift and d.trained and d.shift.value is not None]
    if shifts and max(shifts) < 1e-3:
        equal = "Exit 2 equals" if K == 2 else f"Exits 2 to {K} equal"
        return f"{equal} exit 1 ({gap}): depth is unused."
    best = min(ce, key=lambda k: ce[k])
    more = f" The best exit is {best} ({ce[best]:.3f})." if best != K else ""
    if verdict.depth_use == "no":
        return f"Exit {K} is worth no more than exit 1 ({gap}): depth is unused.{more}"
    if verdict.depth_use == "unsure":
        return f"Whether loops are used is not sure from this much text: {gap}.{more}"
    return f"Loops are used: {gap}.{more}"


def _collapse(depths: list[Depth], seen: Observed) -> list[str]:
    """Only what stands out."""
    found = []
    first, last = depths[1], depths[seen.loops]
    before, after = first.rank.value, last.rank.value
    if before is not None and after is not None and after < before / 2:
        found.append(
            f"States collapse: tokens of a window span {before:.1f} directions after loop 1 and "
            f"{after:.1f} after loop {seen.loops}."
        )
    if last.common.value is not None and last.common.value > 0.9:
        found.append(
            f"After loop {seen.loops} all tokens point nearly the same way (mean direction "
            f"{last.common.value:.3f} of 1)."
        )
    if last.level.value is not None and last.level.value > 0.5:
        found.append(
            f"{last.level.value:.0%} of |H|^2 lies in the mean over the width, which a LayerNorm "
            f"takes away: a hidden mean grows."
            if last.level.value > 1.1 * (first.level.value or 0.0)
            else f"{last.level.value:.0%} of |H|^2 lies in the mean over the width."
        )
    return found
