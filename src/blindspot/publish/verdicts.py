"""From the values of a claim to its verdict: what is asked before anything is judged, the interval
against the criterion, and the tests of the primary claims."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, inf
from typing import Literal, Self

from blindspot.collect.collected import Collected
from blindspot.collect.stats import Judgement, Summary, judge, p_values, summarize
from blindspot.publish.claim import Claim
from blindspot.publish.frames import Frames, Values
from blindspot.publish.quantities import QUANTITIES, Quantity
from blindspot.publish.swept import COLLAPSED as SHARED
from blindspot.publish.swept import GATE
from blindspot.publish.typeset import ABSENT, deciding, interval, number

NOT_LEARNED: Literal["not measured: has not learned"] = "not measured: has not learned"
COLLAPSED: Literal["not measured: collapsed"] = "not measured: collapsed"
Verdict = (
    Judgement
    | Literal["not decided", "conflict", "not measured", "one seed", "not judged"]
    | Literal["not measured: has not learned", "not measured: collapsed"]
)
VERDICTS: tuple[Verdict, ...] = (
    "supported",
    "contradicted",
    "inconclusive",
    "not decided",
    "conflict",
    NOT_LEARNED,
    COLLAPSED,
    "not measured",
    "not judged",
    "one seed",
)
#: Level of Holm's procedure over the tests of the primary claims.
LEVEL = 0.05


@dataclass(frozen=True)
class Finding:
    """The values of a claim, its verdict, and what is to be said beside them."""

    values: Values
    verdict: Verdict = "not measured"
    note: str = ""
    #: p-values of *supported* and *contradicted*, where the claim is primary.
    p: tuple[float, float] | None = None


@dataclass(frozen=True)
class Seeds:
    """The seeds that a claim is planned for, and those with a run that failed: seed -> which."""

    planned: list[int]
    failed: dict[int, str]

    @classmethod
    def of(cls, c: Collected, claim: Claim, size: str) -> Self | None:
        """None where the study has a cell of the claim, but does not plan it at this size."""
        partners = c.initializations if claim.both else {}
        cells = [
            one for cell in claim.cells for one in partners.get(cell, {"": cell}).values()
        ]  # fmt: skip
        if any(cell in c.cells and (size, cell) not in c.planned for cell in cells):
            return None
        (seeds,) = [list(s["seeds"]) for s in c.study["sizes"] if s["name"] == size]
        plans = [c.planned[size, cell] for cell in cells if cell in c.cells]
        common = [x for x in (plans[0] if plans else seeds) if all(x in p for p in plans)]
        failed = {
            seed: f"{cell} {why}"
            for cell in cells
            for seed, why in c.failures.get((size, cell), {}).items()
        }
        return cls(common, failed)

    def note(self, values: Values) -> tuple[bool, str]:
        """Whether the values are all there will be, and what to say of those that are not there."""
        lost = [seed for seed in self.planned if seed not in values]
        failed = [f"seed {seed}: {self.failed[seed]}" for seed in lost if seed in self.failed]
        rest = [str(seed) for seed in lost if seed not in self.failed]
        notes = [f"{len(values)} of {len(self.planned)} seeds", *failed]
        notes += [f"no value of seed {', '.join(rest)}"] if rest else []
        return not rest, "; ".join(notes) if lost else ""


def find(claim: Claim, frames: Mapping[str, Frames], size: str) -> Finding:
    """What the results of one size say of a claim. `frames` are by protocol."""
    quantity, f = QUANTITIES[claim.quantity], frames["full"]
    if claim.setting is not None and (other := claim.setting.differences(f.study(claim.cells))):
        return Finding({}, note=f"published of another {', '.join(other)}")
    if claim.published and size not in claim.published:
        return Finding({}, note=f"published for {', '.join(claim.published)} alone")
    absent = [cell for cell in claim.cells if cell not in f.collected.cells]
    if absent:
        return Finding({}, note=f"the study has no cell {', '.join(absent)}")
    if claim.both:
        return _find_both(claim, f, size)
    if claim.published:
        return _find_published(claim, frames, size)
    values = quantity.measure(f, size, claim.cells, claim.exit)
    if not values:
        return Finding({})
    if hindered := hindrance(quantity, f, size, claim.cells):
        return Finding(values, *hindered)
    low, high = claim.limits(f.loops(claim.cells))
    notes = [_region(claim, quantity, values)]
    if claim.below_depth is not None and min(values.values()) > high:
        notes.append("never halts")
    notes += [_beside(QUANTITIES[name], claim, f, size) for name in claim.beside]
    return Finding(
        values,
        verdict_on(claim, quantity, values, low, high),
        "; ".join(note for note in notes if note),
        _tests(quantity, values, low, high) if claim.primary else None,
    )


def hindrance(
    quantity: Quantity, f: Frames, size: str, cells: Sequence[str]
) -> tuple[Verdict, str] | None:
    """Why no verdict is given on values that are there: a model of these cells has not learned,
    or a state has collapsed."""
    cells = list(dict.fromkeys(cells))
    if quantity.predicts and (why := not_learned(f, size, cells)):
        return NOT_LEARNED, why
    if quantity.freezes and (why := collapsed(f, size, cells)):
        return COLLAPSED, why
    return None


def not_learned(f: Frames, size: str, cells: Sequence[str]) -> str:
    """Says by how much cells miss what is asked of a model that has learned: its best trained exit
    on test is 0.3 nats below a unigram model, in every seed. Empty where all have learned."""
    limit, found = f.collected.baseline("unigram", "test"), []
    for cell in cells:
        ce = f.of("test_exits", size, cell, "ce")
        if ce.empty:
            continue
        best = ce[f.loops([cell])] if f.collected.terminal(cell) else ce.min(axis=1)
        below = (limit - best).fillna(-inf)
        if (below < GATE).any():
            found.append(f"{cell} {number(float(below.min()), 3)} (seed {below.idxmin()})")
    if not found:
        return ""
    return f"nats below a unigram model, of {GATE:g}: {', '.join(found)}"


def collapsed(f: Frames, size: str, cells: Sequence[str]) -> str:
    """Says of which cells a state after the last loop has collapsed to one direction, in some seed.
    Empty where none has."""
    found = []
    for cell in cells:
        shared = f.single("collapse", size, cell, "shared_direction")
        most = max(shared, key=shared.__getitem__, default=None)
        if most is not None and shared[most] > SHARED:
            found.append(f"{cell} {shared[most]:.3f} (seed {most})")
    return f"|mean of u_K|² above {SHARED:g}: {', '.join(found)}" if found else ""


def verdict_on(
    claim: Claim, quantity: Quantity, values: Values, low: float, high: float
) -> Verdict:
    """By the interval over seeds."""
    if not values:
        return "not measured"
    return _judge(quantity, values, low, high) if claim.judged else "not judged"


def _find_published(claim: Claim, frames: Mapping[str, Frames], size: str) -> Finding:
    """Against each place of the paper, read under that place's protocol. The values shown are
    those of the first place."""
    quantity, loops = QUANTITIES[claim.quantity], frames["full"].loops(claim.cells)
    found: list[Values] = []
    verdicts: set[Verdict] = set()
    notes = []
    for place, at in claim.published[size].items():
        values = quantity.measure(frames[at.protocol], size, claim.cells, claim.exit)
        verdict = verdict_on(claim, quantity, values, *claim.limits(loops, at.value))
        found.append(values)
        verdicts.add(verdict)
        notes.append(f"{place}: {shown(summary_of(quantity, values), quantity)}, {verdict}")
    if "not measured" in verdicts:
        return Finding(found[0] if all(found) else {}, note="results are missing")
    if hindered := hindrance(quantity, frames["full"], size, claim.cells):
        return Finding(found[0], *hindered)
    if len(verdicts) == 1:
        verdict = verdicts.pop()
    else:
        verdict = "conflict" if {"supported", "contradicted"} <= verdicts else "inconclusive"
    return Finding(found[0], verdict, "; ".join(notes) if len(notes) > 1 else "")


def _find_both(claim: Claim, f: Frames, size: str) -> Finding:
    """The claim asked of each initialization of the study."""
    quantity, pairs = QUANTITIES[claim.quantity], f.collected.initializations
    if not all(cell in pairs for cell in claim.cells):
        return Finding({}, note="the study has one initialization")
    labels = [x for x in pairs[claim.cells[0]] if all(x in pairs[cell] for cell in claim.cells)]
    found: dict[str, Values] = {}
    hindered = None
    for label in labels:
        cells = [pairs[cell][label] for cell in claim.cells]
        found[label] = quantity.measure(f, size, cells, claim.exit)
        hindered = hindered or hindrance(quantity, f, size, cells)
    common = set.intersection(*(set(values) for values in found.values()))
    # The claim holds under both where it holds under the one that speaks most against it.
    low, high = claim.limits(f.loops(claim.cells))
    worst = {
        seed: min((v[seed] for v in found.values()), key=lambda x: min(x - low, high - x))
        for seed in sorted(common)
    }
    if hindered and worst:
        return Finding(worst, *hindered)
    parts = [f"{label}: {shown(summary_of(quantity, v), quantity)}" for label, v in found.items()]
    rates = {f.collected.rate(pairs[cell][x]) for cell in claim.cells for x in labels}
    if len(rates) > 1:
        parts.append(f"learning rates {', '.join(f'{rate:g}' for rate in sorted(rates))}")
    return Finding(worst, verdict_on(claim, quantity, worst, low, high), "; ".join(parts))


def summary_of(quantity: Quantity, values: Values) -> Summary | None:
    """Mean and spread over seeds, on the scale that is averaged."""
    return summarize([quantity.scale(x) for x in values.values()]) if values else None


def _scaled(quantity: Quantity, *limits: float) -> list[float]:
    return [x if abs(x) == inf else quantity.scale(x) for x in limits]


def _judge(quantity: Quantity, values: Values, low: float, high: float) -> Judgement:
    ours = summary_of(quantity, values)
    assert ours is not None
    low, high = _scaled(quantity, low, high)
    return judge(ours, low, high)


def _tests(
    quantity: Quantity, values: Values, low: float, high: float
) -> tuple[float, float] | None:
    ours = summary_of(quantity, values)
    if ours is None:
        return None
    low, high = _scaled(quantity, low, high)
    return p_values(ours, low, high)


def undecided(claim: Claim, ours: float, low: float, high: float, f: Frames) -> str:
    """What an inconclusive claim would need: the half-width at which the interval around this mean
    lies on one side of the nearest limit."""
    quantity = QUANTITIES[claim.quantity]
    limits = [x for x in claim.limits(f.loops(claim.cells)) if abs(x) < inf]
    mean, *limits = _scaled(quantity, ours, *limits)
    room = min(abs(mean - limit) for limit in limits)
    least, most = _scaled(quantity, low, high)
    half = (most - least) / 2
    if half < room:  # a primary claim, whose tests are adjusted
        return "decided by its own interval, not after the adjustment"
    return deciding(room, half, quantity.unit, quantity.log)


def _region(claim: Claim, quantity: Quantity, values: Values) -> str:
    """In which of the claim's named regions the interval lies, whole."""
    for name, (least, most) in claim.regions.items():
        low = -inf if least is None else least
        high = inf if most is None else most
        if _judge(quantity, values, low, high) == "supported":
            return name
    return ""


def _beside(quantity: Quantity, claim: Claim, f: Frames, size: str) -> str:
    values = quantity.measure(f, size, claim.cells, claim.exit)
    return f"{shown(summary_of(quantity, values), quantity)} {quantity.label}" if values else ""


def ends(ours: Summary, quantity: Quantity, loops: int) -> tuple[float, float, float]:
    """Mean and interval for reading, cut to what the quantity can be."""
    back = exp if quantity.log else float
    most = loops if quantity.loops else quantity.most
    return back(ours.mean), max(back(ours.low), quantity.least), min(back(ours.high), most)


def shown(ours: Summary | None, quantity: Quantity, loops: int = 2**20) -> str:
    """`mean [low, high]` for reading."""
    if ours is None:
        return ABSENT
    return interval(*ends(ours, quantity, loops), quantity.decimals)
