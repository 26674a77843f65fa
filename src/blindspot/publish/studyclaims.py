"""The ledger of a study that makes claims of its own (config/criteria.py).

    write(collected, out)   -> out/claims.csv, .md, .html: one row a claim and size

Verdicts:

    supported       every part fulfils its criterion
    contradicted    every part that says what would contradict it fulfils that
    inconclusive    neither
    not decided     a planned seed is not there yet; one whose training failed is named instead
    not measured    a cell is not there, has not learned (claims about predictions), or has
                    collapsed to one direction (claims about angles)
    one seed        no interval can be given
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, log, nan
from pathlib import Path
from typing import Any

import pandas as pd
from pydantic import TypeAdapter

from blindspot.collect.collected import Collected
from blindspot.config.criteria import (
    POSITIVE,
    PREDICTS,
    Beyond,
    Compared,
    OneClaim,
    Part,
    Predicted,
    Region,
    Slope,
    Value,
)
from blindspot.files import atomic_path, write_text
from blindspot.publish import swept
from blindspot.publish.swept import Interval, Runs, Values
from blindspot.publish.typeset import ABSENT, deciding, markdown, page
from blindspot.publish.typeset import interval as shown_interval

_PART: TypeAdapter[Any] = TypeAdapter(Part)
UNITS = {"gain": "nats", "ce": "nats", "angle": "rad"}
SYMBOLS = {"gain": "CE_1 - CE_K", "ce": "CE_K", "norm": "|H_K|", "first-norm": "|H_1|",
           "growth": "|H_K| / |H_0|", "angle": "last angle", "b-perp": "|b_perp|"}  # fmt: skip

NEITHER = "decided neither way, however narrow the interval at this mean"
#: As the ledger of the paper's claims has them; nothing here is set against a published number.
COLUMNS = ["claim", "size", "ours", "low", "high", "seeds", "unit", "paper", "source", "criterion",
           "verdict", "statement", "note"]  # fmt: skip
MEANING = (
    "Claims of this study, with criteria from its own file. Supported: the intervals of all parts "
    "lie within their criterion. Contradicted: those of all parts that say what would contradict "
    "them lie there. Inconclusive: neither. A prediction (predicted / measured) is judged by its "
    "mean over seeds alone. Not decided: a planned seed has no value yet. Not measured: a cell is "
    "not there, misses the gate (0.3 nats below the unigram model at its best trained exit, on "
    "test, in every seed; claims about predictions), or has collapsed to one direction (claims "
    "about angles). Nothing is adjusted for the number of claims."
)


@dataclass(frozen=True)
class Found:
    """What a part came to: one number a seed, `log` where they are logarithms of what is shown."""

    values: Values
    log: bool = False
    note: str = ""

    def interval(self, confidence: float = 0.95) -> Interval:
        ours = swept.interval(list(self.values.values()), confidence)
        return ours.exp() if self.log else ours


def write(c: Collected, out: Path) -> None:
    """Write claims.csv, .md and .html into `out`."""
    rows = evaluate(c)
    ledger = pd.DataFrame(rows, columns=COLUMNS)
    with atomic_path(out / "claims.csv") as temporary:
        ledger.to_csv(temporary, index=False, lineterminator="\n")
    shown = pd.DataFrame(
        [
            [
                row["statement"],
                row["size"],
                shown_interval(row["ours"], row["low"], row["high"], decimals(row["ours"])),
                row["unit"] or ABSENT,
                str(row["seeds"]),
                row["criterion"],
                row["verdict"],
                row["note"] or ABSENT,
            ]
            for row in rows
        ],
        columns=["Claim", "Size", "Ours", "Unit", "Seeds", "Criterion", "Verdict", "Note"],
    )
    number = Counter(row["verdict"] for row in rows)
    head = f"{', '.join(f'{n} {verdict}' for verdict, n in number.most_common())}."
    parts = [MEANING, c.about(), c.seeds(), c.interval(), *c.apart()]
    note = " ".join(part for part in parts if part)
    write_text(out / "claims.md", f"# Claims\n\n{head}\n\n{markdown(shown, note)}")
    write_text(out / "claims.html", page("Ledger of this study's claims", shown, f"{head} {note}"))


def claims(c: Collected) -> Mapping[str, Any]:
    """The claims of study.json; empty where the study makes none."""
    found: Mapping[str, Any] = c.study.get("claims") or {}
    return found


def evaluate(c: Collected) -> list[dict[str, Any]]:
    """One row a claim and size that trains its cells; a size that trains none of them has none."""
    runs = Runs(c)
    rows = []
    for name, raw in claims(c).items():
        settings = [part.get("settings", {}) for part in raw["parts"]]
        bare = [{k: x for k, x in part.items() if k != "settings"} for part in raw["parts"]]
        claim = OneClaim(claim=raw["claim"], parts=tuple(map(_PART.validate_python, bare)))
        for size in (s["name"] for s in c.study["sizes"]):
            cells = _cells(runs, claim)
            absent = [cell for cell in cells if (size, cell) not in c.planned]
            if len(absent) < len(cells):
                rows.append(_row(runs, size, name, claim, settings, absent))
    return rows


def _cells(runs: Runs, claim: OneClaim) -> list[str]:
    """All cells that a claim needs, those of its sweeps included."""
    found = list(claim.cells)
    for part in claim.parts:
        names = [part.sweep] if isinstance(part, Slope) else []
        names += part.sweeps if isinstance(part, Predicted) else []
        for sweep in names:
            found += [cell for cell, _ in runs.points(sweep, part.cells[0])]
    return list(dict.fromkeys(found))


def _row(
    runs: Runs,
    size: str,
    name: str,
    claim: OneClaim,
    settings: Sequence[Mapping[str, Any]],
    absent: Sequence[str],
) -> dict[str, Any]:
    c = runs.collected
    cells = _cells(runs, claim)
    seeds = set.intersection(*(set(c.planned.get((size, cell), [])) for cell in cells))
    found = [_find(runs, size, part, own) for part, own in zip(claim.parts, settings, strict=True)]
    first = claim.parts[0]
    there = set.intersection(*(set(f.values) for f in found))
    ours = found[0].interval() if found[0].values else Interval(nan, nan, nan)
    notes = _others(claim, found) + [f.note for f in found if f.note]
    failed = {
        seed: f"{cell} {why}"
        for cell in cells
        for seed, why in c.failures.get((size, cell), {}).items()
    }
    lost = sorted(seeds - there)
    notes += [f"seed {seed}: {failed[seed]}" for seed in lost if seed in failed]
    waiting = [seed for seed in lost if seed not in failed]
    verdict = "not measured"
    if absent:
        notes = [f"not trained at {size}: {', '.join(absent)}"]
    elif len(seeds) < 2:
        verdict = "one seed"
    elif waiting:
        # No seed at all: nothing was measured yet.
        verdict = "not decided" if there else "not measured"
        notes.append(f"no value of seed {', '.join(map(str, waiting))}")
    elif blind := _blind(runs, size, claim):
        notes.append(blind)
    elif len(there) < 2:
        verdict = "inconclusive"
    else:
        verdict = judge(claim, found)
        if verdict == "inconclusive":
            needed = [*filter(None, map(undecided, claim.parts, found))]
            # A part that no interval would decide makes the needs of the others pointless.
            notes = [*([x for x in needed if x.endswith(NEITHER)] or needed), *notes]
    return {
        "claim": name,
        "size": size,
        "ours": ours.mean,
        "low": ours.low,
        "high": ours.high,
        "seeds": len(there),
        "unit": unit(first),
        "paper": "",
        "source": f"study {c.study['study']}",
        "criterion": "; ".join(map(criterion, claim.parts)),
        "verdict": verdict,
        "statement": claim.claim,
        "note": "; ".join(notes),
    }


def _others(claim: OneClaim, found: Sequence[Found]) -> list[str]:
    """The values of all parts but the first, whose value has columns of its own."""
    notes = []
    for part, f in list(zip(claim.parts, found, strict=True))[1:]:
        if f.values:
            ours = f.interval()
            notes.append(f"{symbol(part)}: {shown_interval(ours.mean, ours.low, ours.high, 3)}")
    return notes


def judge(claim: OneClaim, found: Sequence[Found]) -> str:
    """The verdict of parts that all have values of two seeds or more."""
    parts = list(zip(claim.parts, found, strict=True))
    if all(_fulfils(part, f, "supported") for part, f in parts):
        return "supported"
    against = [(part, f) for part, f in parts if isinstance(part, Predicted) or part.contradicted]
    if all(_fulfils(part, f, "contradicted") for part, f in against):
        return "contradicted"
    return "inconclusive"


def undecided(part: Part, f: Found) -> str:
    """What a part that neither supports nor contradicts would need: the half-width at which the
    interval around this mean lies on one side. Empty where it does one of the two."""
    if isinstance(part, Predicted) or any(
        _fulfils(part, f, x) for x in ("supported", "contradicted")
    ):
        return ""
    ours = f.interval(
        (part.supported if part.contradicted is None else part.contradicted).confidence
    )
    regions = [x for x in (part.supported, part.contradicted) if x is not None]
    span = next((x for region in regions if (x := region.span(ours.mean))), None)
    if span is None:
        return f"{symbol(part)}: {NEITHER}"
    scale = _log if f.log else float
    mean, low, high, least, most = map(scale, (ours.mean, ours.low, ours.high, *span))
    half = (high - low) / 2
    room = min(mean - least, most - mean)
    return deciding(room, half, log=f.log)


def _fulfils(part: Part, f: Found, which: str) -> bool:
    if isinstance(part, Predicted):
        # A statement about means: the worst of the cells is within the tolerance, or it is not.
        within = abs(f.interval().mean - 1) <= part.tolerance
        return within == (which == "supported")
    region: Region | None = getattr(part, which)
    if region is None:
        return False
    ours = f.interval(region.confidence)
    return region.holds(ours.low, ours.high)


def _blind(runs: Runs, size: str, claim: OneClaim) -> str:
    """Why the claim says nothing: a cell that has not learned, or whose states have collapsed."""
    for part in claim.parts:
        about = _about(part)
        cells = _cells(runs, OneClaim.model_construct(claim="", parts=(part,)))
        if about & PREDICTS:
            short = [text for cell in cells if (text := runs.unlearned(size, cell))]
            if short:
                return f"has not learned: {'; '.join(short)}"
        if "angle" in about:
            gone = [cell for cell in cells if runs.collapsed(size, cell)]
            if gone:
                return f"collapsed to one direction: {', '.join(gone)}"
    return ""


def _about(part: Part) -> set[str]:
    """The values that a part speaks of."""
    if isinstance(part, Beyond):
        return {"ce"}
    return {part.of, part.to or part.of} if isinstance(part, Compared) else {part.of}


def _find(runs: Runs, size: str, part: Part, settings: Mapping[str, Any]) -> Found:
    if isinstance(part, Slope):
        return Found(runs.slopes(size, part.sweep, part.cell, part.of, part.axes))
    if isinstance(part, Value):
        values, positive = runs.of(size, part.cell, part.of), part.of in POSITIVE
        return Found(_logs(values) if positive else values, positive)
    if isinstance(part, Compared):
        ours = runs.of(size, part.cell, part.of)
        theirs = runs.of(size, part.against, part.to or part.of)
        if part.quantity == "ratio":
            return Found(_less(_logs(ours), _logs(theirs)), True)
        return Found(_less(ours, theirs))
    if isinstance(part, Beyond):
        return _beyond(runs, size, part)
    frame = swept.predictions(runs, size, part.model_dump() | {"settings": settings})
    ratios = {
        cell: {int(s): log(p / m) for s, m, p in zip(rows["seed"], rows["measured"],
                                                     rows["predicted"], strict=True)}
        for cell, rows in frame.groupby("cell", sort=False)
    }  # fmt: skip
    if len(ratios) < len(part.left_out):
        return Found({}, True)
    means = {cell: Found(values, True).interval().mean for cell, values in ratios.items()}
    worst = max(means, key=lambda cell: abs(means[cell] - 1))
    shown = ", ".join(f"{cell} {ratio:.2f}" for cell, ratio in means.items())
    return Found(ratios[worst], True, f"predicted / measured: {shown}")


def _beyond(runs: Runs, size: str, part: Beyond) -> Found:
    K = runs.collected.loops_of[part.cell]

    def away(k: int) -> Values:
        if part.against:
            return _less(runs.at(size, part.cell, k), runs.at(size, part.against, k))
        return _less(runs.at(size, part.cell, k), runs.at(size, part.cell, K))

    if not part.ladder:
        return Found(away(part.at))
    deepest, shown = None, []
    for k in sorted({*part.ladder, part.at}):
        found = Found(away(k))
        if len(found.values) < 2:
            continue
        ours = found.interval(part.supported.confidence)
        deepest = k if part.supported.holds(ours.low, ours.high) else deepest
        shown.append(f"{k}: {shown_interval(ours.mean, ours.low, ours.high, 3)}")
    reach = f"stable to {deepest}" if deepest else f"not stable at {min(part.ladder)}"
    return Found(away(part.at), note=f"{reach}; by exit {', '.join(shown)}" if shown else "")


def _logs(values: Values) -> Values:
    return {seed: _log(x) for seed, x in values.items()}


def _log(x: float) -> float:
    return log(x) if x > 0 else -inf


def _less(a: Values, b: Values) -> Values:
    return {seed: a[seed] - b[seed] for seed in sorted(set(a) & set(b))}


# --- for reading ---------------------------------------------------------------------------------


def symbol(part: Part) -> str:
    """What a part is about, in symbols."""
    if isinstance(part, Slope):
        y, _, x = part.axes.partition("-")
        value = SYMBOLS[part.of] if y == "linear" else f"log {SYMBOLS[part.of]}"
        return (
            f"slope of {value} on {part.sweep}"
            if x == "linear"
            else (f"slope of {value} on {x} {part.sweep}")
        )
    if isinstance(part, Value):
        return SYMBOLS[part.of]
    if isinstance(part, Compared):
        theirs = f"{SYMBOLS[part.to or part.of]} of {part.against}"
        return f"{SYMBOLS[part.of]} of {part.cell} {_WORDS[part.quantity]} {theirs}"
    if isinstance(part, Beyond):
        theirs = f"that of {part.against} there" if part.against else "that at the trained K"
        return f"CE at exit {part.at} less {theirs}"
    return "mean of predicted / measured |H_K|, the worst"


_WORDS = {"ratio": "over", "difference": "less"}


def unit(part: Part) -> str:
    """Of a part's value."""
    if isinstance(part, Slope):
        if part.axes.startswith("log-"):
            return "exponent"
        doubling = " a doubling" if part.axes.endswith("log2") else ""
        return UNITS.get(part.of, "") + doubling
    if isinstance(part, Predicted) or (isinstance(part, Compared) and part.quantity == "ratio"):
        return "times"
    if isinstance(part, Beyond):
        return "nats"
    return "times" if part.of == "growth" else UNITS.get(part.of, "")


def criterion(part: Part) -> str:
    """What would support a part, and what contradict it."""
    if isinstance(part, Predicted):
        return f"{symbol(part)}: within {part.tolerance:.0%}"
    against = f" (contradicted: {part.contradicted.text()})" if part.contradicted else ""
    return f"{symbol(part)}: {part.supported.text()}{against}"


def decimals(value: float) -> int:
    """Of a value of the ledger: differences in nats are small."""
    return 4 if abs(value) < 0.1 else 2 if abs(value) < 100 else 0
