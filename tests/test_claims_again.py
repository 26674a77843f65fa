"""Verdicts of the ledger against the same claims in plain numpy (recomputed.py), and against what
other cells of the study do to them: nothing."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import recomputed
import synthetic
from blindspot.collect.collect import collect
from blindspot.collect.collected import Collected
from blindspot.config.study import Study
from blindspot.publish import claims
from synthetic import PAPER

SEEDS = (42, 101, 202, 303, 404)
#: All cells that a primary claim names.
NAMED = ["terminal-rms", "perloop-rms", "perloop-raw", "perloop-rms-penalty"]
#: As noisy as small models are, so that not all is clear.
NOISY = replace(
    PAPER,
    ppl=PAPER.ppl | {"odd": [4.6] * 4},
    norm=PAPER.norm | {"odd": [39, 60, 70, 80, 90]},
    ppl_sd=0.01,
    exit_sd=0.004,
    norm_sd=0.3,
)


def made(folder: Path, cells: list[str], odd: bool = False) -> Path:
    study = synthetic.make_study(folder, ["129m"], cells, SEEDS, steps=400)
    values = study.config.model_dump()
    values["training"]["validate_every"] = 50
    if odd:
        # Of another architecture, and with half of the training.
        short = {"loss": "per-loop", "readout": "layernorm", "training": {"steps": 200}}
        values["cells"]["odd"] = short
    study = Study.of(values)
    synthetic.write(study, NOISY)
    collect(study, folder / "collected")
    return folder / "collected"


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("few"), NAMED)


def check(folder: Path, size: str) -> None:
    rows = claims.evaluate(Collected(folder))
    rows = rows[rows["size"] == size].set_index("claim")
    again = recomputed.Again(folder, size)
    tests = {}
    for name, (values, log, low, high) in recomputed.PRIMARY.items():
        found = values(again)
        tests[name] = recomputed.p_values(found, log, low, high)
        row = rows.loc[name]
        mean = np.exp(np.log([*found.values()]).mean()) if log else np.mean([*found.values()])
        assert row["ours"] == pytest.approx(mean) and row["seeds"] == len(found)
        ours = row[["p_supported", "p_contradicted"]].astype(float)
        assert tuple(ours) == pytest.approx(tests[name], rel=1e-6, abs=1e-15), name
    skipped = ("not measured", "not decided")
    for name, verdict in recomputed.by_holm(tests).items():
        if not rows.loc[name, "verdict"].startswith(skipped):
            assert rows.loc[name, "verdict"] == verdict, name
    for name, (values, log, low, high) in recomputed.OTHERS.items():
        if not rows.loc[name, "verdict"].startswith(skipped):
            expected = recomputed.by_interval(values(again), log, low, high)
            assert rows.loc[name, "verdict"] == expected, name


# The share that loops 2 to K add is the same in all seeds here.
@pytest.mark.filterwarnings("ignore:Precision loss")
def test_verdicts_follow_from_the_files_by_plain_numpy(few: Path):
    check(few, "129m")
    verdicts = set(claims.evaluate(Collected(few))["verdict"])
    assert {"supported", "contradicted", "inconclusive"} <= verdicts


@pytest.mark.extra
@pytest.mark.parametrize("files", [["small"], ["small", "small-common"]])
def test_a_committed_study_follows_from_its_files(tmp_path: Path, files: list[str]):
    """Collected from the runs in results/, recomputed, and what was published is that."""
    root = synthetic.ROOT
    overlays = [root / f"studies/{name}.yaml" for name in files]
    study = Study.load(root / "config.yaml", overlays, {"results": str(root / "results")})
    collect(study, tmp_path)
    c = Collected(tmp_path)
    check(tmp_path, claims.smallest(c))
    now = claims.evaluate(c).set_index(["claim", "size"])["verdict"]
    published = pd.read_csv(root / f"results/{files[-1]}/claims.csv").set_index(["claim", "size"])
    assert dict(now) == dict(published["verdict"])
    # Every cell that is judged has learned, in each seed.
    assert not now.str.contains("has not learned").any()


def test_another_cell_moves_no_verdict(few: Path, tmp_path: Path):
    """Neither its noise, nor its cost, nor its speed has a part in what others are judged by."""
    rows = claims.evaluate(Collected(few)).set_index("claim")
    more = [cell for cell in (*synthetic.CELLS, "perloop-rms-interloop") if cell != "terminal-raw"]
    whole = made(tmp_path, more, odd=True)
    table = pd.read_csv(whole / "runs.csv")
    assert table.groupby("cell")["steps"].first()["odd"] == 200
    larger = claims.evaluate(Collected(whole)).set_index("claim")
    own = [name for name, claim in claims.claims().items() if {*claim.cells} <= {*NAMED}]
    assert len(own) > 40 and set(recomputed.PRIMARY) <= {*own}
    for name in own:
        assert larger.loc[name, "verdict"] == rows.loc[name, "verdict"], name
        for column in ("ours", "low", "high", "p_supported", "p_contradicted_adjusted"):
            a, b = float(larger.loc[name, column]), float(rows.loc[name, column])
            assert a == pytest.approx(b, nan_ok=True), (name, column)
