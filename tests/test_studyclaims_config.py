"""Claims in a study's own file: what is refused, before any job, and that they decide no run."""

from pathlib import Path
from typing import Any

import pytest

from blindspot.config.criteria import Region
from blindspot.config.study import Study
from blindspot.config.studyclaims import judged
from blindspot.errors import BlindspotError

ROOT = Path(__file__).parents[1]
RATES: dict[str, Any] = {
    "cells": {"perloop-rms": None, "perloop-raw": None},
    "sweeps": {
        "rate": {"cells": ["perloop-rms"], "over": {"training.learning_rate": [1e-4, 3e-4]}},
        "decay": {"cells": ["perloop-rms"], "over": {"training.weight_decay": [0.0, 0.1]}},
        "init": {"cells": ["perloop-rms"], "over": {"init_std": ["default", 0.02]}},
    },
}
SLOPE: dict[str, Any] = {
    "quantity": "slope",
    "of": "norm",
    "sweep": "rate",
    "cell": "perloop-rms",
    "supported": {"above": 0.1},
    "contradicted": {"below": 0.1},
}
BEYOND = {"quantity": "beyond", "cell": "perloop-rms", "at": 8,
          "supported": {"below": 0.05}, "contradicted": {"above": 0.05}}  # fmt: skip
PREDICTED = {"quantity": "predicted", "cell": "perloop-rms", "sweeps": ["rate"],
             "left_out": ["perloop-raw"], "tolerance": 0.25}  # fmt: skip


def study(claims: dict[str, Any]) -> Study:
    return Study.load(ROOT / "config.yaml", override=RATES | {"claims": claims})


def claim(*parts: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"it": {"claim": "It is so.", "parts": list(parts), **more}}


def test_a_claim_moves_no_run_and_each_cell_has_its_own():
    with_claims = study(claim(SLOPE | {"cell": "{cell}"}, BEYOND, each=["perloop-rms"]))
    assert [run.name for run in with_claims.runs] == [run.name for run in study({}).runs]
    assert judged(with_claims.config)["it.perloop-rms"].parts[0].cells == ("perloop-rms",)
    # What is published depends on them.
    assert with_claims.config.identity() != study({}).config.identity()
    assert "claims" not in study({}).config.identity()


@pytest.mark.parametrize(
    "part, error",
    [
        (SLOPE | {"cell": "perloop"}, r"claims\.it\.parts\.0: the study has no cell perloop, but"),
        (SLOPE | {"sweep": "depth"}, r"parts\.0\.sweep: the study has no sweep depth, but rate"),
        (SLOPE | {"cell": "perloop-raw"}, r"parts\.0\.sweep: sweep rate has no cell perloop-raw"),
        (SLOPE | {"sweep": "init"}, r"parts\.0\.sweep: sweep init needs two numbers"),
        (SLOPE | {"sweep": "decay"}, r"parts\.0\.sweep: sweep decay has 0\.0, .*no logarithm"),
        (SLOPE | {"of": "gain"}, r"parts\.0\.axes: gain may be negative"),
        (SLOPE | {"of": "speed"}, r"claims\.it\.parts\.0\.\S*of: .*'gain'"),
        (SLOPE | {"supported": {"above": 1, "below": 2}}, r"parts\.0\.\S*supported: give exactly"),
        (SLOPE | {"supported": {"within": [2, 1]}}, r"parts\.0\.\S*supported: \[2\.0, 1\.0\]: the"),
        (SLOPE | {"contradicted": None}, r"claims\.it: no part says what would contradict"),
        (SLOPE | {"quantity": "trend"}, r"claims\.it\.parts\.0"),
        (BEYOND | {"at": 7}, r"parts\.0: exit 7 is not scored; add it to measurement\.depths_"),
        (BEYOND | {"ladder": [6]}, r"parts\.0: exit 6 is not scored"),
        (PREDICTED | {"sweeps": ["decay"]}, r"parts\.0\.sweeps: sweep decay has 0\.0"),
        (PREDICTED | {"left_out": ["other"]}, r"parts\.0: the study has no cell other"),
    ],
)  # fmt: skip
def test_what_cannot_be_judged_is_refused_by_its_key(part: dict[str, Any], error: str):
    with pytest.raises(BlindspotError, match=error):
        study(claim(part))


def test_a_later_file_chooses_the_claims():
    config = Study.load(ROOT / "config.yaml", [ROOT / "studies" / "laws.yaml"]).config
    over = {"claims": {"rate-drives": None}}
    chosen = Study.load(ROOT / "config.yaml", [ROOT / "studies" / "laws.yaml"], over).config
    assert list(chosen.claims) == ["rate-drives"] and len(config.claims) > 1


def test_regions():
    assert Region(above=2).holds(2.0, 3.0) and not Region(above=2).holds(1.9, 3.0)
    assert Region(below=2).holds(-5.0, 2.0) and not Region(below=2).holds(-5.0, 2.1)
    assert Region(within=(-1, 1)).holds(-1.0, 1.0) and not Region(within=(-1, 1)).holds(-1.1, 0)
    # Beyond an edge, but all on one side of it.
    outside = Region(outside=(-1, 1))
    assert outside.holds(1.1, 9.0) and outside.holds(-9.0, -1.1) and not outside.holds(-2.0, 2.0)
