"""Quantities of what scaling a state does (quantities.py): whether a readout sees and restores the
norm, and the activity lemma in trained weights. One number a seed each."""

from collections.abc import Sequence

from blindspot.publish.frames import Frames, Values, by_seed


def _response(f: Frames, size: str, cell: str, value: str) -> dict[float, Values]:
    """A column of scale_response.csv at the last loop, by the scale on H_K, then by seed."""
    frame = f.scale_response
    if (size, cell) not in frame.index:
        return {}
    table = frame.loc[[(size, cell)]].pivot(index="seed", columns="scale", values=value)
    return {float(str(scale)): by_seed(table[scale]) for scale in table}


def visible(f: Frames, size: str, cells: Sequence[str], at: int | None = None) -> Values:
    """How much the CE of H_K rises where it is halved or doubled, whichever is more, nats."""
    change = _response(f, size, cells[0], "change_mean")
    if not {0.5, 2.0} <= change.keys():
        return {}
    return {seed: max(change[0.5][seed], change[2.0][seed]) for seed in change[0.5]}


def restoring(f: Frames, size: str, cells: Sequence[str], at: int | None = None) -> Values:
    """The weaker of the two slopes that draw the norm back: d CE / d log a, outwards, at the
    smallest and at the largest scale, nats. Positive where both draw it back."""
    slope = _response(f, size, cells[0], "slope")
    if not slope:
        return {}
    small, large = slope[min(slope)], slope[max(slope)]
    return {seed: min(-small[seed], large[seed]) for seed in small}


def _lemma(f: Frames, name: str, size: str, cell: str, value: str, exact: bool) -> Values:
    """At the last loop, with the eps of the model or with none (`exact`)."""
    frame = getattr(f, name)
    if (size, cell) not in frame.index:
        return {}
    rows = frame.loc[[(size, cell)]]
    rows = rows[(rows["eps"] == 0) == exact].dropna(subset=[value])
    return {int(s): float(v) for s, v in zip(rows["seed"], rows[value], strict=True)}


def lemma_ratio(f: Frames, size: str, cells: Sequence[str], at: int | None = None) -> Values:
    """s tan(angle) of the last loop over |b_perp| / (1 + b_par / s): median over tokens, at the
    model's own eps."""
    return _lemma(f, "lemma2_update", size, cells[0], "ratio_p50", exact=False)


def lemma_slope(f: Frames, size: str, cells: Sequence[str], at: int | None = None) -> Values:
    """Slope of the last loop's log angle on the log of the scale of H_1, where the lemma speaks:
    mean over tokens, with eps 0."""
    return _lemma(f, "lemma2_slope", size, cells[0], "slope_mean", exact=True)
