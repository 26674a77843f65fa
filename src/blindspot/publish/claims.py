"""The ledger: what the study claims (claims.yaml), and what the results say of it.

    write(collected, out)       -> out/claims.csv, out/claims.md
    summary(out / "claims.csv") -> one line

One row a claim and size. docs/criteria.md says how verdicts come about. Intervals are 95 %
t-intervals over seeds, of each number by itself. Primary claims are judged at the smallest size by
two one-sided tests each, adjusted together; their rows of larger sizes are replication.

    supported       the whole interval fulfils the criterion (primary: the adjusted test says so)
    contradicted    no part of it does (primary: likewise)
    inconclusive    neither, or there are fewer than two seeds
    not decided     a planned seed is not there yet, or has no such value; one whose training failed
                    is named instead, and the verdict is that of the others
    conflict        the paper reports the number in several places; ours, each read as that place
                    read it, agrees with one and refutes another
    not measured    something that the claim is about is not there; a model has not learned, or a
                    state has collapsed, so that its value says nothing of the claim
    not judged      a value without a criterion
    one seed        a size of one seed can have no verdict: its rows are in the CSV alone
"""

import csv
from collections import Counter
from math import nan
from pathlib import Path

import numpy as np
import pandas as pd

from blindspot.collect.collected import Collected
from blindspot.collect.stats import holm
from blindspot.declared.exits import PROTOCOLS
from blindspot.errors import BlindspotError
from blindspot.files import atomic_path, write_text
from blindspot.publish import sampling, studyclaims
from blindspot.publish.catalogue import CLAIMS
from blindspot.publish.claim import PRIMARY, Claim, claims
from blindspot.publish.frames import Frames
from blindspot.publish.quantities import QUANTITIES
from blindspot.publish.typeset import ABSENT, interval, markdown, number, page
from blindspot.publish.verdicts import (
    LEVEL,
    VERDICTS,
    Finding,
    Seeds,
    Verdict,
    ends,
    find,
    undecided,
)
from blindspot.publish.verdicts import summary_of as _summary

TESTS = ["p_supported", "p_contradicted"]
ADJUSTED = [f"{name}_adjusted" for name in TESTS]
COLUMNS = ["claim", "primary", "size", "ours", "low", "high", "text_se", "seeds", "unit",
           "criterion", "verdict", *TESTS, *ADJUSTED, "paper", "source", "statement",
           "note"]  # fmt: skip
#: What `primary` says of a claim that is primary, at the size that decides and at others.
DECIDES, REPLICATES = "primary", "replication"


def evaluate(c: Collected) -> pd.DataFrame:
    """The ledger: `COLUMNS`, one row a claim and size of the study's config; none of a size at
    which the study does not plan the claim's cells."""
    frames = {name: Frames(c, name) for name in PROTOCOLS}
    decides = smallest(c)
    rows = []
    for name, claim in claims().items():
        for size in (entry["name"] for entry in c.study["sizes"]):
            if (seeds := Seeds.of(c, claim, size)) is not None:
                found = find(claim, frames, size)
                rows.append(_row(frames["full"], name, claim, size, found, seeds))
                if claim.primary:
                    rows[-1]["primary"] = DECIDES if size == decides else REPLICATES
    ledger = _tested(pd.DataFrame(rows, columns=COLUMNS))
    for at, row in ledger[ledger["verdict"].eq("inconclusive")].iterrows():
        claim = claims()[row["claim"]]
        if not claim.published and row["seeds"] > 1:
            needed = undecided(claim, row["ours"], row["low"], row["high"], frames["full"])
            ledger.loc[at, "note"] = "; ".join(filter(None, [needed, row["note"]]))
    return ledger


def smallest(c: Collected) -> str:
    """The size at which primary claims are judged."""
    return str(min(c.study["sizes"], key=lambda s: s["layers"] * s["d_model"] ** 2)["name"])


def _tested(ledger: pd.DataFrame) -> pd.DataFrame:
    """The ledger with the p-values of primary claims adjusted, and the verdicts that follow."""
    chosen = ledger.index[ledger["primary"] == DECIDES]
    raw = ledger.loc[chosen, TESTS].to_numpy(dtype=float).ravel()
    # A claim that could not be tested still counts: the family was named before any run.
    family = np.concatenate([raw, np.full(2 * PRIMARY - len(raw), np.nan)])
    adjusted = np.array(holm(family.tolist())[: len(raw)], dtype=float).reshape(-1, 2)
    adjusted[np.isnan(raw.reshape(-1, 2))] = np.nan
    ledger.loc[chosen, ADJUSTED] = adjusted
    for at, (supported, contradicted) in zip(chosen, adjusted, strict=True):
        if ledger.loc[at, "verdict"] in ("supported", "contradicted", "inconclusive"):
            verdict = "supported" if supported <= LEVEL else "inconclusive"
            ledger.loc[at, "verdict"] = "contradicted" if contradicted <= LEVEL else verdict
    return ledger


def _row(
    f: Frames, name: str, claim: Claim, size: str, found: Finding, seeds: Seeds
) -> dict[str, object]:
    quantity, error = QUANTITIES[claim.quantity], nan
    verdict: Verdict = found.verdict
    if quantity.timed:
        # One timing: its quartiles, and no seeds.
        ours = tuple(found.values.get(i, nan) for i in range(3))
        count, notes = 0, [found.note or ("" if found.values else "results are missing")]
    else:
        summary, loops = _summary(quantity, found.values), f.loops(claim.cells)
        ours = ends(summary, quantity, loops) if summary else (nan, nan, nan)
        count, notes = len(found.values), [found.note]
        complete, lost = seeds.note(found.values)
        if len(seeds.planned) < 2 and claim.judged:
            verdict = "one seed"
        elif found.values and not complete and claim.judged:
            verdict = "not decided"
        if found.values:
            notes.append(lost)
            error = sampling.error(claim.quantity, f, size, claim.cells, claim.exit)
        elif not found.note:
            notes.append("results are missing" if not complete else lost)
        if summary and summary.n > 1 and summary.sd == 0:
            notes.append("all seeds have the same value, so the interval has no width")
    return {
        "claim": name,
        "primary": "",
        "size": size,
        "ours": ours[0],
        "low": ours[1],
        "high": ours[2],
        "text_se": error,
        "seeds": count,
        "unit": quantity.unit,
        "criterion": claim.criterion(quantity.unit),
        "verdict": verdict,
        **dict(zip(TESTS, found.p or (nan, nan), strict=True)),
        **dict.fromkeys(ADJUSTED, nan),
        "paper": claim.reported(size),
        "source": claim.source,
        "statement": claim.claim,
        "note": "; ".join(note for note in notes if note),
    }


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
    text, note = _shown_ledger(c, ledger)
    verdicts = [v for v in ledger["verdict"] if v != "one seed"]
    counts = f"{_counts(verdicts or ['one seed'])}."
    write_text(out / "claims.md", f"# Claims\n\n{counts}\n\n{markdown(text, note)}")
    write_text(out / "claims.html", page(CLAIMS.title, text, f"{counts} {note}"))


def _shown_ledger(c: Collected, ledger: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """The ledger as text, primary claims first, and the note below it. Sizes of one seed, and
    claims of another setting, stand in the note alone."""
    ledger = ledger.assign(rank=ledger["primary"].map({DECIDES: 0, REPLICATES: 1, "": 2}))
    foreign = ledger["verdict"].eq("not measured") & ledger["note"].str.startswith("published ")
    rows = []
    for _, row in (
        ledger[ledger["verdict"].ne("one seed") & ~foreign]
        .sort_values("rank", kind="stable")
        .iterrows()
    ):
        decimals = QUANTITIES[claims()[row["claim"]].quantity].decimals
        ours = interval(row["ours"], row["low"], row["high"], decimals)
        said = [row["primary"], _p(row), row["note"]]
        if row["seeds"]:
            said.append(f"{row['seeds']} seeds")
        if not np.isnan(row["text_se"]):
            said.append(f"error of the text {number(row['text_se'], 2)} {row['unit']}")
        rows.append(
            [
                row["statement"],
                row["size"],
                ours if ours == ABSENT else f"{ours} {row['unit']}",
                row["criterion"] or ABSENT,
                row["verdict"],
                row["paper"] or ABSENT,
                "; ".join(part for part in said if part) or ABSENT,
            ]
        )
    headers = ["Claim", "Size", "Ours", "Criterion", "Verdict", "Paper", "Note"]
    return pd.DataFrame(rows, columns=headers), _note(c, ledger, foreign)


def _p(row: pd.Series) -> str:
    """The adjusted p-value of the verdict that is nearer."""
    p = row[ADJUSTED].min()
    return "" if np.isnan(p) else f"adjusted p {number(p, 3) if p >= 5e-4 else '< 0.001'}"


def _note(c: Collected, ledger: pd.DataFrame, foreign: pd.Series) -> str:
    meaning = (
        "Supported: the whole interval fulfils the criterion; contradicted: no part of it does; "
        "inconclusive: it straddles the criterion, or there are fewer than two seeds; not decided: "
        "a planned seed has no value yet (one whose training failed is named instead); conflict: "
        "ours agrees with one of the paper's own values and refutes another; not measured: "
        "something that the claim is about is not there, a model of it has not learned (its best "
        "exit is not 0.3 nats below token frequencies on test), or its state has collapsed to one "
        "direction; not judged: shown without a criterion."
    )
    tests = (
        f"Primary claims, named before any run, are judged at {smallest(c)} by two one-sided "
        f"t-tests over seeds each, for supported and for contradicted, all {2 * PRIMARY} adjusted "
        f"by Holm's procedure at {LEVEL:g}; other sizes replicate. All intervals are 95 % ones of "
        f"each number by itself, unadjusted for how many there are. Error of the text: standard "
        f"error of the same number on test, when blocks of 8 windows are drawn anew."
    )
    parts = [CLAIMS.caption, meaning, tests, c.about(), c.rates(), c.seeds(), c.interval()]
    alone = ledger.loc[ledger["verdict"] == "one seed", "size"].unique()
    if len(alone):
        parts.insert(3, f"One seed, so no verdict, at {', '.join(alone)}: values in the CSV.")
    if foreign.any():
        names = ", ".join(dict.fromkeys(ledger.loc[foreign, "claim"]))
        parts.insert(3, f"Of another setting or size than this study's, in the CSV alone: {names}.")
    return " ".join(part for part in [*parts, *c.apart()] if part)


def _counts(verdicts: list[str]) -> str:
    counts = Counter(verdicts)
    if "one seed" in counts and set(counts) <= {"one seed", "not judged"}:
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
    return f"Claims at {'; '.join(parts)}"
