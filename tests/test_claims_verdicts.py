"""Each verdict for each claim: the paper's values support, their opposite contradicts
(tests/test_claims.py); here are the verdicts in between, and those that refuse to judge."""

from pathlib import Path

import pandas as pd
import pytest

from blindspot.collect.collected import Collected
from blindspot.publish import claims
from blindspot.publish.quantities import QUANTITIES
from blindspot.publish.verdicts import COLLAPSED, NOT_LEARNED
from test_claims import BOTH, BROKEN, CELLS, LAYERNORM, PAPER, SHOWN, collected, ledger

#: Claims that a verdict can be given on, with these cells.
JUDGED = [name for name in claims.claims() if name not in BOTH | LAYERNORM | SHOWN]
PREDICTIONS = {n for n in JUDGED if QUANTITIES[claims.claims()[n].quantity].predicts}
FREEZING = {n for n in JUDGED if QUANTITIES[claims.claims()[n].quantity].freezes}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    kinds = {"paper": PAPER, "broken": BROKEN}
    return {n: collected(tmp_path_factory.mktemp(n), v, CELLS) for n, v in kinds.items()}


def tables(folder: Path) -> dict[str, pd.DataFrame]:
    return {p.stem: pd.read_csv(p) for p in folder.glob("*.csv")}


def judged(folder: Path, found: dict[str, pd.DataFrame]) -> pd.DataFrame:
    c = Collected(folder)
    c.frame = found.__getitem__  # type: ignore[method-assign]
    return claims.evaluate(c).set_index("claim").loc[JUDGED]


def test_seeds_that_disagree_decide_nothing(folders: dict[str, Path]):
    """One seed as the paper says, two the opposite."""
    found, others = tables(folders["paper"]), tables(folders["broken"])
    for name, frame in found.items():
        if "seed" in frame:
            other = others[name]
            found[name] = pd.concat([frame[frame["seed"] == 42], other[other["seed"] != 42]])
    # What the two studies have in common: how a state's scale acts.
    for name, column, opposite in [
        ("scale_response", "change_mean", -0.5),
        ("scale_response", "slope", -0.5),
        ("lemma2_update", "ratio_p50", 3.0),
        ("lemma2_slope", "slope_mean", 0.0),
    ]:
        found[name] = found[name].assign(
            **{column: found[name][column].where(found[name]["seed"] == 42, opposite)}
        )
    # What the recurrence receives behind an inter-loop norm has RMS 1, whatever the model.
    rows = judged(folders["paper"], found).drop("control-interloop")
    assert set(rows["verdict"]) == {"inconclusive"}, rows[rows["verdict"] != "inconclusive"]


def test_no_claim_about_predictions_is_judged_on_a_model_that_has_not_learned(
    folders: dict[str, Path],
):
    found = tables(folders["paper"])
    found["baselines"] = found["baselines"].assign(ce=0.0)
    rows, before = judged(folders["paper"], found), ledger(folders["paper"]).loc[JUDGED]
    assert {n for n in JUDGED if rows.loc[n, "verdict"] == NOT_LEARNED} == PREDICTIONS
    rest = [n for n in JUDGED if n not in PREDICTIONS]
    assert (rows.loc[rest, "verdict"] == before.loc[rest, "verdict"]).all()


def test_no_claim_about_freezing_is_judged_on_a_state_that_has_collapsed(folders: dict[str, Path]):
    found = tables(folders["paper"])
    found["collapse"] = found["collapse"].assign(shared_direction=0.95)
    rows, before = judged(folders["paper"], found), ledger(folders["paper"]).loc[JUDGED]
    assert {n for n in JUDGED if rows.loc[n, "verdict"] == COLLAPSED} == FREEZING != set()
    rest = [n for n in JUDGED if n not in FREEZING]
    assert (rows.loc[rest, "verdict"] == before.loc[rest, "verdict"]).all()


def test_an_inconclusive_claim_says_which_interval_would_decide(folders: dict[str, Path]):
    """The interval that is said, around the same mean, touches the nearest limit."""
    found = tables(folders["paper"])
    e = found["exits"]
    raw = (e["cell"] == "perloop-raw") & (e["k"] == 1)
    noise = e["seed"].map({42: -0.04, 101: 0.0, 202: 0.04})
    found["exits"] = e.assign(ce=e["ce"] + noise.where(raw, 0.0))
    row = judged(folders["paper"], found).loc["useful-depth-raw"]
    assert row["verdict"] == "inconclusive"
    room, half = row["ours"] - 0.02, (row["high"] - row["low"]) / 2
    assert f"at this mean decided by ± {room:.2g} nats (here {half:.2g})" in row["note"]
    # Logarithms: by a factor.
    u = found["norms"]
    raw = u["cell"] == "perloop-raw"
    wide = u["seed"].map({42: 0.1, 101: 1.0, 202: 10.0}).where(raw, 1.0)
    found["norms"] = u.assign(rms_mean=u["rms_mean"] * wide)
    row = judged(folders["paper"], found).loc["control-raw"]
    room, half = 5 / row["ours"], (row["high"] / row["low"]) ** 0.5
    assert f"by a factor of {room:.3g} either way (here {half:.3g})" in row["note"]


def with_layernorm(folder: Path, found: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """The claims on LayerNorm readouts, of a cell whose results are those of perloop-rms."""
    c = Collected(folder)
    (own,) = [cell for cell in c.study["cells"] if cell["name"] == "perloop-rms"]
    c.study["cells"].append(own | {"name": "perloop-layernorm", "readout": "layernorm"})
    c.study["sizes"][0]["planned"] |= {"perloop-layernorm": [42, 101, 202]}
    for name, frame in found.items():
        copy = frame[frame["cell"] == "perloop-rms"].assign(cell="perloop-layernorm")
        if "run" in copy:
            copy["run"] = copy["run"].str.replace("/perloop-rms/", "/perloop-layernorm/")
        found[name] = pd.concat([frame, copy], ignore_index=True)
    c.frame = found.__getitem__  # type: ignore[method-assign]
    return claims.evaluate(c).set_index("claim").loc[sorted(LAYERNORM)]


@pytest.mark.parametrize(
    ("first", "rest", "verdict"),
    [
        ("paper", "paper", "supported"),
        ("broken", "broken", "contradicted"),
        ("paper", "broken", "inconclusive"),
    ],
)
def test_claims_about_layernorm(folders: dict[str, Path], first: str, rest: str, verdict: str):
    found, others = tables(folders[first]), tables(folders[rest])
    for name, frame in found.items():
        if "seed" in frame:
            other = others[name]
            found[name] = pd.concat([frame[frame["seed"] == 42], other[other["seed"] != 42]])
    rows = with_layernorm(folders[first], found)
    assert set(rows["verdict"]) == {verdict}, rows[["verdict", "ours", "note"]]
