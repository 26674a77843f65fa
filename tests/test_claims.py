"""The ledger: verdicts from the paper's values, from values that break each claim, from one seed,
and from nothing."""

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

import synthetic
from blindspot import claims
from blindspot.catalogue import CLAIMS
from blindspot.collect import collect
from blindspot.collected import Collected
from blindspot.errors import BlindspotError
from blindspot.quantities import QUANTITIES
from blindspot.stats import summarize
from synthetic import PAPER, Probe

CELLS = [*synthetic.CELLS, "perloop-rms-interloop"]
CONFLICTS = {"published-perplexity", "published-gain-raw", "published-gain-finalnorm",
             "published-gain-penalty"}  # fmt: skip
BOTH = {name for name in claims.claims() if name.endswith("-both-inits")}

FLAT = {cell: [4.55] * 4 for cell in CELLS}
#: The opposite of every claim at once.
BROKEN = replace(
    PAPER,
    ppl=FLAT
    | {
        "terminal-rms": [4.90, 4.88, 4.88, 4.88],
        "terminal-raw": [4.90, 4.88, 4.88, 4.88],
        "perloop-rms": [4.53, 4.2, 4.1, 4.0],
        "perloop-raw": [4.60, 4.61, 4.62, 4.62],
    },
    norm={cell: [39, 9e4, 8e4, 7e4, 6e4] for cell in CELLS} | {"perloop-rms": [39, 60, 50, 45, 40]},
    probes=dict.fromkeys(CELLS, Probe(cos=1e-2, clamp=0.1, loops=1.0, hill=12.0))
    | {
        "perloop-rms": Probe(cos=1e-2, clamp=0.1, loops=2.5, hill=12.0, bend=2.0),
        "perloop-raw": Probe(cos=1e-9, clamp=0.1, loops=1.0),
    },
)


def collected(folder: Path, values: synthetic.Values, cells: list[str], **kwargs) -> Path:
    study = synthetic.make_study(folder, ["129m"], cells, steps=200, **kwargs)
    synthetic.write(study, values)
    collect(study, folder / "collected")
    return folder / "collected"


def ledger(folder: Path) -> pd.DataFrame:
    return claims.evaluate(Collected(folder)).set_index("claim")


@pytest.fixture(scope="module")
def paper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return collected(tmp_path_factory.mktemp("paper"), PAPER, CELLS)


def test_the_papers_values_support_its_claims_and_conflict_in_two_places(paper: Path):
    verdicts = ledger(paper)["verdict"]
    assert set(verdicts[verdicts == "conflict"].index) == CONFLICTS
    assert set(verdicts[verdicts == "not measured"].index) == BOTH
    assert set(verdicts.drop([*CONFLICTS, *BOTH])) == {"supported"}
    assert len(verdicts) == len(claims.claims())


def test_values_that_break_each_claim_contradict_each(tmp_path: Path):
    verdicts = ledger(collected(tmp_path, BROKEN, CELLS))["verdict"]
    assert set(verdicts.drop([*BOTH])) == {"contradicted"}, verdicts[verdicts != "contradicted"]


def test_one_seed_decides_nothing(tmp_path: Path):
    rows = ledger(collected(tmp_path, PAPER, CELLS, seeds=[42])).drop([*BOTH])
    assert set(rows["verdict"]) == {"inconclusive"}
    assert rows["ours"].notna().all() and rows[["low", "high"]].isna().all(axis=None)


def initialized(folder: Path, small: dict[str, str]) -> Collected:
    """The study with cells of a small initialization, whose results are those of other cells."""
    c = Collected(folder)
    cells = {cell["name"]: cell for cell in c.study["cells"]}
    c.study["cells"] += [cells[n] | {"name": f"{n}-std0.02", "init_std": 0.02} for n in small]
    tables = {p.stem: pd.read_csv(p) for p in folder.glob("*.csv")}
    for name, frame in tables.items():
        parts = [frame[frame["cell"] == f].assign(cell=f"{n}-std0.02") for n, f in small.items()]
        tables[name] = pd.concat([frame, *parts], ignore_index=True)
    c.frame = tables.__getitem__  # type: ignore[method-assign]
    return c


def test_both_initializations(paper: Path):
    """Held under both; broken under the small one alone."""
    asked = ["perloop-rms", "perloop-raw", "perloop-rms-penalty"]
    alike = initialized(paper, {cell: cell for cell in asked})
    rows = claims.evaluate(alike).set_index("claim")
    assert set(rows.loc[[*BOTH], "verdict"]) == {"supported"}
    swapped = dict(zip(asked, ["perloop-raw", "perloop-rms", "perloop-rms"], strict=True))
    rows = claims.evaluate(initialized(paper, swapped)).set_index("claim")
    assert set(rows.loc[[*BOTH], "verdict"]) == {"contradicted"}
    # The cells of the default are what the other claims are about, and those still hold.
    assert set(rows.loc[["drift", "k-invariance", "dominance-raw"], "verdict"]) == {"supported"}
    row = rows.loc["drift-both-inits"]
    assert row["ours"] == pytest.approx(17 / 56_051, rel=0.1)
    assert "default: 3,2" in row["note"] and "; 0.02: 3.1e-4 [" in row["note"]


def test_no_verdict_comes_from_what_is_missing(paper: Path, tmp_path: Path):
    """Each cell away in turn: its claims are not measured, and no other verdict moves."""
    whole, c = ledger(paper), Collected(paper)
    tables = {p.stem: pd.read_csv(p) for p in paper.glob("*.csv")}
    for cell in CELLS:
        c = Collected(paper)
        gone = {name: frame[frame["cell"] != cell] for name, frame in tables.items()}
        c.frame = gone.__getitem__  # type: ignore[method-assign]
        rows = claims.evaluate(c).set_index("claim")
        about = {n for n, claim in claims.claims().items() if cell in claim.cells}
        assert (rows.loc[[*about], "verdict"] == "not measured").all()
        assert (rows.loc[[*about - BOTH], "note"] == "results are missing").all()
        others = [n for n in rows.index if n not in about]
        assert (rows.loc[others, "verdict"] == whole.loc[others, "verdict"]).all()
    c = Collected(paper)
    c.frame = {n: f.iloc[:0] for n, f in tables.items()}.__getitem__  # type: ignore[method-assign]
    assert set(claims.evaluate(c)["verdict"]) == {"not measured"}


def test_a_seed_that_is_missing_is_named(paper: Path):
    c = Collected(paper)
    tables = {p.stem: pd.read_csv(p) for p in paper.glob("*.csv")}
    gone = {
        n: f if n == "throughput" else f[(f["cell"] != "perloop-raw") | (f["seed"] != 42)]
        for n, f in tables.items()
    }
    c.frame = gone.__getitem__  # type: ignore[method-assign]
    row = claims.evaluate(c).set_index("claim").loc["drift"]
    assert (row["seeds"], row["note"]) == (2, "2 of 3 seeds")


def test_published_values_are_of_one_corpus(paper: Path):
    c = Collected(paper)
    c.study["corpus"] = "enwiki-sample"
    rows = claims.evaluate(c).set_index("claim")
    assert set(rows.loc[[*CONFLICTS], "verdict"]) == {"not measured"}
    assert rows.loc["drift", "verdict"] == "supported"


@pytest.mark.parametrize(
    ("values", "low", "high", "verdict"),
    [
        ([5.0, 5.1, 5.2], 4, math.inf, "supported"),
        ([5.0, 5.1, 5.2], 6, math.inf, "contradicted"),
        ([5.0, 5.1, 5.2], 5.1, math.inf, "inconclusive"),
        ([0.001, -0.001, 0.002], -0.01, 0.01, "supported"),
        # Equivalence is not the absence of a difference: noise supports nothing.
        ([0.02, -0.02, 0.001], -0.01, 0.01, "inconclusive"),
        ([0.05, 0.051, 0.052], -0.01, 0.01, "contradicted"),
        ([5.0], 4, math.inf, "inconclusive"),
        ([-math.inf] * 3, 0, math.inf, "contradicted"),
        ([math.inf] * 3, 0, math.inf, "supported"),
        ([-math.inf, 1.0, 1.0], 0, math.inf, "inconclusive"),
        ([-math.inf, math.inf], 0, math.inf, "inconclusive"),
    ],
)
def test_the_rule_of_the_verdict(values: list[float], low: float, high: float, verdict: str):
    assert claims.judge(summarize(values), low, high) == verdict


def test_values_against_the_files(paper: Path):
    """Three rows by hand: a ratio, a difference of CE, a minimum over the frontier."""
    rows = ledger(paper)
    norms = pd.read_csv(paper / "norms.csv").query("k == 4").set_index(["cell", "seed"])["l2_mean"]
    logs = np.log(norms["perloop-rms"] / norms["perloop-raw"])
    row = rows.loc["drift"]
    assert row["ours"] == pytest.approx(math.exp(logs.mean()))
    assert math.log(row["high"] / row["low"]) == pytest.approx(2 * 2.48414 * logs.std(), rel=1e-5)
    e = pd.read_csv(paper / "exits.csv").query("protocol == 'full' and split == 'validation'")
    ce = e.set_index(["cell", "seed", "k"])["ce"].unstack()
    a = ce.loc["perloop-rms"]
    assert rows.loc["k-invariance", "ours"] == pytest.approx((a[1] - a[4]).mean())
    # A faster exit may stand in for one as deep: 2 of 4, but never the other way round.
    b = ce.loc["perloop-raw"]
    margins = [a[k] - b[list(range(1, k + 1))].min(axis=1) for k in (1, 2, 3, 4)]
    expected = pd.concat(margins, axis=1).min(axis=1).mean()
    assert rows.loc["dominance-raw", "ours"] == pytest.approx(expected)


def test_files_and_summary(paper: Path, tmp_path: Path):
    claims.write(paper, tmp_path)
    table = pd.read_csv(tmp_path / "claims.csv")
    assert {"claim", "size", "ours", "paper", "criterion", "verdict"} <= set(table.columns)
    counts = Counter(table["verdict"])
    line = claims.summary(tmp_path / "claims.csv")
    assert "\n" not in line and f"129m: {counts['supported']} supported" in line
    page = (tmp_path / "claims.md").read_text()
    assert page.count("\n| ") == len(table) + 2  # with header and rule
    for part in ("Study paper", "wikitext-103-raw-v1", "2.48", "56,051", "conflict: the paper's"):
        assert part in page
    with pytest.raises(BlindspotError, match="snakemake claims"):
        claims.summary(tmp_path / "no.csv")
    claims.write(paper, tmp_path / "again")
    assert (tmp_path / "again/claims.csv").read_bytes() == (tmp_path / "claims.csv").read_bytes()


def test_the_declaration():
    """Each quantity is asked for, each claim has a source, and the ledger reads what it uses."""
    declared = claims.claims()
    assert {claim.quantity for claim in declared.values()} == set(QUANTITIES)
    assert all(claim.source and claim.claim.endswith(".") for claim in declared.values())
    known = {*CELLS}
    assert {cell for claim in declared.values() for cell in claim.cells} <= known
    assert set(CLAIMS.reads) == {"exits", "norms", "gradients", "updates", "clamp", "halting",
                                 "throughput"}  # fmt: skip
    with pytest.raises(ValueError, match="exactly one"):
        claims.Claim.model_validate(
            yaml.safe_load(
                "{claim: x, quantity: hill, cells: [a], source: s, at_most: 1, within: 2}"
            )
        )
