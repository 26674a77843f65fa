"""The ledger: what the study claims (claims.yaml), and what the results say of it.

    write(collected, out)       -> out/claims.csv, out/claims.md
    summary(out / "claims.csv") -> one line

One row a claim and size, with one of five verdicts. The interval is the 95 % t-interval over seeds.

    supported       the whole interval fulfils the criterion
    contradicted    no part of it does
    inconclusive    the interval straddles the criterion, or there are fewer than two seeds
    conflict        the paper's own values differ by more than the criterion allows, and ours do
                    not refute them all
    not measured    something that the claim is about is not there; no verdict comes from that
"""

import csv
from collections import Counter
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from math import exp, isnan, nan
from pathlib import Path
from typing import Annotated, Literal, Self

import pandas as pd
import yaml
from pydantic import Field, model_validator

from blindspot.catalogue import CLAIMS
from blindspot.collected import Collected
from blindspot.errors import BlindspotError
from blindspot.files import atomic_path, write_text
from blindspot.quantities import QUANTITIES, Frames, Quantity, Values
from blindspot.spec import Settings
from blindspot.stats import Summary, summarize
from blindspot.typeset import ABSENT, markdown, number, page

Verdict = Literal["supported", "contradicted", "inconclusive", "conflict", "not measured"]
VERDICTS: tuple[Verdict, ...] = (
    "supported",
    "contradicted",
    "inconclusive",
    "conflict",
    "not measured",
)
COLUMNS = ["claim", "size", "ours", "low", "high", "seeds", "unit", "paper", "source", "criterion",
           "verdict", "statement", "note"]  # fmt: skip


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
    published: dict[str, dict[str, float]] = Field(default_factory=dict)
    corpus: str | None = None
    both: bool = False

    @model_validator(mode="after")
    def _criterion(self) -> Self:
        given = [self.at_least, self.at_most, self.within]
        if sum(x is not None for x in given) != 1:
            raise ValueError("give exactly one of at_least, at_most, within")
        if self.quantity not in QUANTITIES:
            raise ValueError(f"no quantity {self.quantity!r}; there are {', '.join(QUANTITIES)}")
        return self

    def limits(self, around: float = 0.0) -> tuple[float, float]:
        """Lowest and highest value that fulfils the criterion."""
        if self.at_least is not None:
            return self.at_least, float("inf")
        if self.at_most is not None:
            return -float("inf"), self.at_most
        assert self.within is not None
        return around - self.within, around + self.within

    def criterion(self, unit: str) -> str:
        """The criterion, for reading."""
        if self.at_least is not None:
            return f"≥ {self.at_least:g} {unit}"
        if self.at_most is not None:
            return f"≤ {self.at_most:g} {unit}"
        if self.published:
            return f"within {self.within:g} of it"
        return f"within ± {self.within:g} {unit}"

    def reported(self, size: str) -> str:
        """The paper's value for that size, for reading."""
        if size in self.published:
            return "; ".join(
                f"{value:g} ({place})" for place, value in self.published[size].items()
            )
        return self.paper if isinstance(self.paper, str) else self.paper.get(size, "")


@cache
def claims() -> dict[str, Claim]:
    """All claims by name, in the order of the file."""
    text = files("blindspot").joinpath("claims.yaml").read_text(encoding="utf-8")
    return {name: Claim.model_validate(value) for name, value in yaml.safe_load(text).items()}


def judge(ours: Summary, low: float, high: float) -> Verdict:
    """Whether the interval of `ours` lies within `low`..`high`, outside, or neither.

    Values that are infinite for every seed are an interval of their own (an overflow is no doubt).
    """
    if ours.n < 2:
        return "inconclusive"
    least, most = (ours.mean, ours.mean) if _all_infinite(ours) else (ours.low, ours.high)
    if least >= low and most <= high:
        return "supported"
    if most < low or least > high:
        return "contradicted"
    return "inconclusive"


def _all_infinite(ours: Summary) -> bool:
    return abs(ours.mean) == float("inf") and ours.infinite == ours.n


@dataclass(frozen=True)
class Finding:
    """The values of a claim, and what is to be said beside them."""

    values: Values
    note: str = ""


def evaluate(c: Collected) -> pd.DataFrame:
    """The ledger: `COLUMNS`, one row a claim and size of the study's config."""
    frames = Frames(c)
    planned = {size["name"]: size["seeds"] for size in c.study["sizes"]}
    rows = [
        _row(name, claim, size, seeds, _find(claim, frames, size))
        for name, claim in claims().items()
        for size, seeds in planned.items()
    ]
    return pd.DataFrame(rows, columns=COLUMNS)


def _find(claim: Claim, f: Frames, size: str) -> Finding:
    quantity, study = QUANTITIES[claim.quantity], f.collected.study
    if claim.corpus is not None and study["corpus"] != claim.corpus:
        return Finding({}, f"the published value is of {claim.corpus}")
    if claim.published and size not in claim.published:
        return Finding({}, f"published for {', '.join(claim.published)} alone")
    if not claim.both:
        absent = [cell for cell in claim.cells if cell not in f.collected.cells]
        if absent:
            return Finding({}, f"the study has no cell {', '.join(absent)}")
        return Finding(quantity.measure(f, size, claim.cells))
    pairs = f.collected.initializations
    if not all(cell in pairs for cell in claim.cells):
        return Finding({}, "the study has one initialization")
    labels = [x for x in pairs[claim.cells[0]] if all(x in pairs[cell] for cell in claim.cells)]
    found = {
        label: quantity.measure(f, size, [pairs[cell][label] for cell in claim.cells])
        for label in labels
    }
    common = set.intersection(*(set(values) for values in found.values()))
    # The claim holds under both where it holds under the one that speaks most against it.
    low, high = claim.limits()
    worst = {
        seed: min((v[seed] for v in found.values()), key=lambda x: min(x - low, high - x))
        for seed in sorted(common)
    }
    shown = [f"{label}: {_shown(_summary(quantity, v), quantity)}" for label, v in found.items()]
    return Finding(worst, "; ".join(shown))


def _summary(quantity: Quantity, values: Values) -> Summary | None:
    return summarize(quantity.scale(values)) if values else None


def _verdict(claim: Claim, quantity: Quantity, size: str, ours: Summary | None) -> Verdict:
    if ours is None:
        return "not measured"
    if not claim.published:
        low, high = (quantity.scale({0: x})[0] if 0 < x < float("inf") else x
                     for x in claim.limits())  # fmt: skip
        return judge(ours, low, high)
    values = list(claim.published[size].values())
    verdicts = {judge(ours, *claim.limits(value)) for value in values}
    assert claim.within is not None
    if ours.n < 2 or len(verdicts) == 1:
        return verdicts.pop()
    return "conflict" if max(values) - min(values) > claim.within else "inconclusive"


def _row(name: str, claim: Claim, size: str, seeds: list[int], found: Finding) -> dict[str, object]:
    quantity = QUANTITIES[claim.quantity]
    ours = _summary(quantity, found.values)
    back = exp if quantity.log else float
    notes = [found.note]
    if found.values and len(found.values) < len(seeds):
        notes.append(f"{len(found.values)} of {len(seeds)} seeds")
    if not found.values and not found.note:
        notes.append("results are missing")
    return {
        "claim": name,
        "size": size,
        "ours": back(ours.mean) if ours else nan,
        "low": back(ours.low) if ours else nan,
        "high": back(ours.high) if ours else nan,
        "seeds": len(found.values),
        "unit": quantity.unit,
        "paper": claim.reported(size),
        "source": claim.source,
        "criterion": claim.criterion(quantity.unit),
        "verdict": _verdict(claim, quantity, size, ours),
        "statement": claim.claim,
        "note": "; ".join(note for note in notes if note),
    }


def _shown(ours: Summary | None, quantity: Quantity) -> str:
    """`mean [low, high]` for reading."""
    if ours is None:
        return ABSENT
    back = exp if quantity.log else float
    mean, low, high = (number(back(x), quantity.decimals) for x in (ours.mean, ours.low, ours.high))
    return mean if isnan(ours.ci) else f"{mean} [{low}, {high}]"


def write(collected: Path, out: Path) -> None:
    """Write claims.csv, .md and .html of the folder that `collect` wrote into `out`."""
    c = Collected(collected)
    ledger = evaluate(c)
    with atomic_path(out / "claims.csv") as temporary:
        ledger.to_csv(temporary, index=False, lineterminator="\n")
    shown, note = _shown_ledger(c, ledger)
    counts = f"{_counts(ledger['verdict'].tolist())}."
    write_text(out / "claims.md", f"# Claims\n\n{counts}\n\n{markdown(shown, note)}")
    write_text(out / "claims.html", page(CLAIMS.title, shown, f"{counts} {note}"))


def _shown_ledger(c: Collected, ledger: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """The ledger as text, and the note below it."""
    rows = []
    for _, row in ledger.iterrows():
        decimals = QUANTITIES[claims()[row["claim"]].quantity].decimals
        mean, low, high = (number(row[x], decimals) for x in ("ours", "low", "high"))
        rows.append(
            {
                "Claim": row["statement"],
                "Size": row["size"],
                "Ours": mean if ABSENT in (low, high) else f"{mean} [{low}, {high}]",
                "Seeds": str(row["seeds"]),
                "Paper": row["paper"] or ABSENT,
                "Criterion": row["criterion"],
                "Verdict": row["verdict"],
                "Note": row["note"] or ABSENT,
            }
        )
    meaning = (
        "Supported: the whole interval fulfils the criterion; contradicted: no part of it does; "
        "inconclusive: it straddles the criterion, or there are fewer than two seeds; conflict: "
        "the paper's own values differ by more than the criterion allows; not measured: something "
        "that the claim is about is not there."
    )
    parts = [CLAIMS.caption, meaning, c.about(), c.seeds(), c.interval(), c.missing()]
    return pd.DataFrame(rows), " ".join(part for part in parts if part)


def _counts(verdicts: list[str]) -> str:
    counts = Counter(verdicts)
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
    return f"Claims of the paper at {'; at '.join(parts)}"
