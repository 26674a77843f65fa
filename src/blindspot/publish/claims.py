"""The ledger: what the study claims (claims.yaml), and what the results say of it.

    write(collected, out)       -> out/claims.csv, out/claims.md
    summary(out / "claims.csv") -> one line

One row a claim and size, with one of six verdicts. The interval is the 95 % t-interval over seeds.
A size of one seed can have no verdict: its rows are in the CSV alone, with the verdict `one seed`.

    supported       the whole interval fulfils the criterion
    contradicted    no part of it does
    inconclusive    the interval straddles the criterion, or there are fewer than two seeds
    not decided     a planned seed is not there yet, or has no such value; one whose training failed
                    is named instead, and the verdict is that of the others
    conflict        the paper reports the number in several places; ours, each read as that place
                    read it, agrees with one and refutes another
    not measured    something that the claim is about is not there; no verdict comes from that. A
                    model no better than token frequencies has no loss to speak of either
"""

import csv
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from math import exp, inf, nan
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import pandas as pd
import yaml
from pydantic import Field, model_validator

from blindspot.collect.collected import Collected
from blindspot.collect.stats import Judgement, Summary, judge, summarize
from blindspot.config.spec import Settings
from blindspot.declared.exits import PROTOCOLS, Protocol
from blindspot.errors import BlindspotError
from blindspot.files import atomic_path, write_text
from blindspot.publish import studyclaims
from blindspot.publish.catalogue import CLAIMS
from blindspot.publish.quantities import QUANTITIES, Frames, Quantity, Values
from blindspot.publish.typeset import ABSENT, interval, markdown, page

Verdict = Judgement | Literal["not decided", "conflict", "not measured", "one seed"]
VERDICTS: tuple[Verdict, ...] = (
    "supported",
    "contradicted",
    "inconclusive",
    "not decided",
    "conflict",
    "not measured",
    "one seed",
)
COLUMNS = ["claim", "size", "ours", "low", "high", "seeds", "unit", "paper", "source", "criterion",
           "verdict", "statement", "note"]  # fmt: skip


class Published(Settings):
    """A value that the paper reports in one place, and the protocol of exits.csv that it is of."""

    value: float
    protocol: Protocol


class Setting(Settings):
    """What a perplexity depends on before any model: published ones are of one setting."""

    corpus: str
    tokenizer: dict[str, str | int]
    windows: dict[str, int]
    loops: int

    def differences(self, study: Mapping[str, Any]) -> list[str]:
        """What of it is otherwise in a study."""
        own = {name: getattr(self, name) for name in type(self).model_fields}
        found = []
        for name, value in own.items():
            other = study[name]
            if isinstance(value, dict):
                other = {key: other.get(key) for key in value}
            if other != value:
                found.append(name)
        return found


class Claim(Settings):
    """One entry of claims.yaml, which explains the keys."""

    claim: str
    quantity: str
    cells: Annotated[list[str], Field(min_length=1)]
    at_least: float | None = None
    at_most: float | None = None
    within: float | None = None
    paper: str | dict[str, str] = ""
    source: str
    below_depth: float | None = None
    published: dict[str, dict[str, Published]] = Field(default_factory=dict)
    setting: Setting | None = None
    both: bool = False

    @model_validator(mode="after")
    def _criterion(self) -> Self:
        given = [self.at_least, self.at_most, self.within]
        if sum(x is not None for x in given) != 1:
            raise ValueError("give exactly one of at_least, at_most, within")
        if self.quantity not in QUANTITIES:
            raise ValueError(f"no quantity {self.quantity!r}; there are {', '.join(QUANTITIES)}")
        return self

    def limits(self, loops: int, around: float = 0.0) -> tuple[float, float]:
        """Lowest and highest value that fulfils the criterion, of a cell with `loops`."""
        if self.at_least is not None:
            most = inf if self.below_depth is None else loops - self.below_depth
            return self.at_least, most
        if self.at_most is not None:
            return -inf, self.at_most
        assert self.within is not None
        return around - self.within, around + self.within

    def criterion(self, unit: str) -> str:
        """The criterion, for reading."""
        if self.at_least is not None:
            room = "" if self.below_depth is None else f", ≤ K − {self.below_depth:g}"
            return f"≥ {self.at_least:g} {unit}{room}"
        if self.at_most is not None:
            return f"≤ {self.at_most:g} {unit}"
        if self.published:
            return f"within {self.within:g} of it"
        return f"within ± {self.within:g} {unit}"

    def reported(self, size: str) -> str:
        """The paper's value for that size, for reading."""
        if size in self.published:
            return "; ".join(
                f"{at.value:g} ({place}, protocol {at.protocol})"
                for place, at in self.published[size].items()
            )
        return self.paper if isinstance(self.paper, str) else self.paper.get(size, "")


@cache
def claims() -> dict[str, Claim]:
    """All claims by name, in the order of the file."""
    text = files("blindspot.publish").joinpath("claims.yaml").read_text(encoding="utf-8")
    return {name: Claim.model_validate(value) for name, value in yaml.safe_load(text).items()}


@dataclass(frozen=True)
class Finding:
    """The values of a claim, its verdict, and what is to be said beside them."""

    values: Values
    verdict: Verdict = "not measured"
    note: str = ""


@dataclass(frozen=True)
class _Seeds:
    """The seeds that a claim is planned for, and those with a run that failed: seed -> which."""

    planned: list[int]
    failed: dict[int, str]

    @classmethod
    def of(cls, c: Collected, claim: Claim, size: str, planned: list[int]) -> Self:
        partners = c.initializations if claim.both else {}
        failed = {
            seed: f"{cell} {why}"
            for cell in claim.cells
            for one in partners.get(cell, {"": cell}).values()
            for seed, why in c.failures.get((size, one), {}).items()
        }
        return cls(planned, failed)

    def note(self, values: Values) -> tuple[bool, str]:
        """Whether the values are all there will be, and what to say of those that are not there."""
        lost = [seed for seed in self.planned if seed not in values]
        failed = [f"seed {seed}: {self.failed[seed]}" for seed in lost if seed in self.failed]
        rest = [str(seed) for seed in lost if seed not in self.failed]
        notes = [f"{len(values)} of {len(self.planned)} seeds", *failed]
        notes += [f"no value of seed {', '.join(rest)}"] if rest else []
        return not rest, "; ".join(notes) if lost else ""


def evaluate(c: Collected) -> pd.DataFrame:
    """The ledger: `COLUMNS`, one row a claim and size of the study's config."""
    frames = {name: Frames(c, name) for name in PROTOCOLS}
    planned = {size["name"]: size["seeds"] for size in c.study["sizes"]}
    rows = [
        _row(name, claim, size, _find(claim, frames, size), _Seeds.of(c, claim, size, seeds))
        for name, claim in claims().items()
        for size, seeds in planned.items()
    ]
    return pd.DataFrame(rows, columns=COLUMNS)


def _find(claim: Claim, frames: Mapping[str, Frames], size: str) -> Finding:
    quantity, f = QUANTITIES[claim.quantity], frames["full"]
    if claim.setting is not None and (other := claim.setting.differences(f.study(claim.cells))):
        return Finding({}, note=f"published of another {', '.join(other)}")
    if claim.published and size not in claim.published:
        return Finding({}, note=f"published for {', '.join(claim.published)} alone")
    if claim.both:
        return _find_both(claim, f, size)
    absent = [cell for cell in claim.cells if cell not in f.collected.cells]
    if absent:
        return Finding({}, note=f"the study has no cell {', '.join(absent)}")
    if blind := _blind(quantity, f, size, claim.cells):
        return Finding({}, note=blind)
    if claim.published:
        return _find_published(claim, frames, size)
    values = quantity.measure(f, size, claim.cells)
    low, high = claim.limits(f.loops(claim.cells))
    never = values and claim.below_depth is not None and min(values.values()) > high
    return Finding(values, _judge(quantity, values, low, high), "never halts" if never else "")


def _blind(quantity: Quantity, f: Frames, size: str, cells: Sequence[str]) -> str:
    """Says which runs predict no better at any exit than token frequencies do, if the quantity is
    of predictions: then it compares models that have learned nothing of their context."""
    if not quantity.predicts:
        return ""
    limit = f.collected.baseline("unigram")
    found = []
    for cell in dict.fromkeys(cells):
        ce = f.of("exits", size, cell, "ce")
        found += [cell] if len(ce) and (ce.min(axis=1) >= limit).any() else []
    return f"no better than a unigram model: {', '.join(found)}" if found else ""


def _find_published(claim: Claim, frames: Mapping[str, Frames], size: str) -> Finding:
    """Against each place of the paper, read under that place's protocol. The values shown are
    those of the first place."""
    quantity, loops = QUANTITIES[claim.quantity], frames["full"].loops(claim.cells)
    found: list[Values] = []
    verdicts: set[Verdict] = set()
    notes = []
    for place, at in claim.published[size].items():
        values = quantity.measure(frames[at.protocol], size, claim.cells)
        verdict = _judge(quantity, values, *claim.limits(loops, at.value))
        found.append(values)
        verdicts.add(verdict)
        notes.append(f"{place}: {_shown(_summary(quantity, values), quantity)}, {verdict}")
    if "not measured" in verdicts:
        return Finding(found[0] if all(found) else {}, note="results are missing")
    if len(verdicts) == 1:
        verdict = verdicts.pop()
    else:
        verdict = "conflict" if {"supported", "contradicted"} <= verdicts else "inconclusive"
    return Finding(found[0], verdict, "; ".join(notes))


def _find_both(claim: Claim, f: Frames, size: str) -> Finding:
    """The claim asked of each initialization of the study."""
    quantity, pairs = QUANTITIES[claim.quantity], f.collected.initializations
    if not all(cell in pairs for cell in claim.cells):
        return Finding({}, note="the study has one initialization")
    labels = [x for x in pairs[claim.cells[0]] if all(x in pairs[cell] for cell in claim.cells)]
    found: dict[str, Values] = {}
    for label in labels:
        cells = [pairs[cell][label] for cell in claim.cells]
        if blind := _blind(quantity, f, size, cells):
            return Finding({}, note=blind)
        found[label] = quantity.measure(f, size, cells)
    common = set.intersection(*(set(values) for values in found.values()))
    # The claim holds under both where it holds under the one that speaks most against it.
    low, high = claim.limits(f.loops(claim.cells))
    worst = {
        seed: min((v[seed] for v in found.values()), key=lambda x: min(x - low, high - x))
        for seed in sorted(common)
    }
    shown = [f"{label}: {_shown(_summary(quantity, v), quantity)}" for label, v in found.items()]
    return Finding(worst, _judge(quantity, worst, low, high), "; ".join(shown))


def _summary(quantity: Quantity, values: Values) -> Summary | None:
    return summarize([quantity.scale(x) for x in values.values()]) if values else None


def _judge(quantity: Quantity, values: Values, low: float, high: float) -> Verdict:
    """The verdict on values against limits, all on the scale that is averaged."""
    ours = _summary(quantity, values)
    if ours is None:
        return "not measured"
    return judge(ours, *(x if abs(x) == inf else quantity.scale(x) for x in (low, high)))


def _row(name: str, claim: Claim, size: str, found: Finding, seeds: _Seeds) -> dict[str, object]:
    quantity = QUANTITIES[claim.quantity]
    ours = _summary(quantity, found.values)
    back = exp if quantity.log else float
    complete, lost = seeds.note(found.values)
    verdict: Verdict = found.verdict
    if len(seeds.planned) < 2:
        verdict = "one seed"
    elif found.values and not complete:
        verdict = "not decided"
    notes = [found.note]
    if found.values:
        notes.append(lost)
    elif not found.note:
        notes.append("results are missing" if not complete else lost)
    return {
        "claim": name,
        "size": size,
        "ours": back(ours.mean) if ours else nan,
        "low": max(back(ours.low), quantity.least) if ours else nan,
        "high": back(ours.high) if ours else nan,
        "seeds": len(found.values),
        "unit": quantity.unit,
        "paper": claim.reported(size),
        "source": claim.source,
        "criterion": claim.criterion(quantity.unit),
        "verdict": verdict,
        "statement": claim.claim,
        "note": "; ".join(note for note in notes if note),
    }


def _shown(ours: Summary | None, quantity: Quantity) -> str:
    """`mean [low, high]` for reading."""
    if ours is None:
        return ABSENT
    back = exp if quantity.log else float
    low = max(back(ours.low), quantity.least)
    return interval(back(ours.mean), low, back(ours.high), quantity.decimals)


def write(collected: Path, out: Path) -> None:
    """Write claims.csv, .md and .html of the folder that `collect` wrote into `out`: of the claims
    that the study makes itself, if it does, else of the paper's."""
    c = Collected(collected)
    if studyclaims.claims(c):
        studyclaims.write(c, out)
        return
    ledger = evaluate(c)
    with atomic_path(out / "claims.csv") as temporary:
        ledger.to_csv(temporary, index=False, lineterminator="\n")
    shown, note = _shown_ledger(c, ledger)
    shown_verdicts = [v for v in ledger["verdict"] if v != "one seed"]
    counts = f"{_counts(shown_verdicts or ['one seed'])}."
    write_text(out / "claims.md", f"# Claims\n\n{counts}\n\n{markdown(shown, note)}")
    write_text(out / "claims.html", page(CLAIMS.title, shown, f"{counts} {note}"))


def _shown_ledger(c: Collected, ledger: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """The ledger as text, without sizes of one seed, and the note below it."""
    rows = []
    for _, row in ledger[ledger["verdict"] != "one seed"].iterrows():
        decimals = QUANTITIES[claims()[row["claim"]].quantity].decimals
        rows.append(
            [
                row["statement"],
                row["size"],
                interval(row["ours"], row["low"], row["high"], decimals),
                str(row["seeds"]),
                row["paper"] or ABSENT,
                row["criterion"],
                row["verdict"],
                row["note"] or ABSENT,
            ]
        )
    headers = ["Claim", "Size", "Ours", "Seeds", "Paper", "Criterion", "Verdict", "Note"]
    alone = ledger.loc[ledger["verdict"] == "one seed", "size"].unique()
    meaning = (
        "Supported: the whole interval fulfils the criterion; contradicted: no part of it does; "
        "inconclusive: it straddles the criterion, or there are fewer than two seeds; not decided: "
        "a planned seed has no value yet (one whose training failed is named instead); conflict: "
        "ours agrees with one of the paper's own values and refutes another; not measured: "
        "something that the claim is about is not there, or the models predict no better than "
        "token frequencies."
    )
    parts = [CLAIMS.caption, meaning, c.about(), c.seeds(), c.interval(), *c.apart()]
    if len(alone):
        parts.insert(2, f"One seed, so no verdict, at {', '.join(alone)}: values in the CSV.")
    return pd.DataFrame(rows, columns=headers), " ".join(part for part in parts if part)


def _counts(verdicts: list[str]) -> str:
    counts = Counter(verdicts)
    if set(counts) == {"one seed"}:
        return "one seed, so no verdict"
    return ", ".join(f"{counts[v]} {v}" for v in VERDICTS if counts[v])


def summary(csv_file: Path) -> str:
    """One line: how many rows of claims.csv have each verdict, by size."""
    try:
        with open(csv_file, encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
    except FileNotFoundError:
        raise BlindspotError(f"{csv_file}: no such file; run `snakemake claims` first") from None
    sizes = dict.fromkeys(row["size"] for row in rows)
    parts = [f"{s}: {_counts([r['verdict'] for r in rows if r['size'] == s])}" for s in sizes]
    return f"Claims at {'; at '.join(parts)}"
