"""The ledger of a study's own claims: each quantity against numbers computed plainly, each verdict
reached, and planted faults that change the verdict that they should."""

from collections.abc import Callable
from dataclasses import replace
from math import exp, log
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pandas as pd
import pytest
from pydantic import TypeAdapter
from scipy import stats

import synthetic
from blindspot.collect.collect import collect
from blindspot.config.criteria import Part
from blindspot.config.study import Run, Study
from blindspot.publish import claims, studyclaims
from blindspot.publish.studyclaims import Found, undecided
from blindspot.publish.swept import Runs
from synthetic_laws import ROOT, UNIGRAM, Fake, Made, collected, load

SEEDS = (42, 101, 202)


def noise(run: Run, scale: float = 1.0) -> float:
    """Of a run: the same in each test."""
    return float(np.random.default_rng([run.seed, crc32(run.cell.encode())]).normal(0, scale))


def law(run: Run) -> float:
    """|H_K| = 20 (rate / 8e-3)^0.6 (steps / 400)^0.3 (K / 4)^0.9, and noise of half a per cent."""
    spec = run.spec
    steps = spec.training.steps or 0
    value = 20 * (spec.training.learning_rate / 8e-3) ** 0.6 * (steps / 400) ** 0.3
    return value * (spec.model.loops / 4) ** 0.9 * exp(noise(run, 0.005))


def of_law(run: Run) -> Made:
    K, last = run.spec.model.loops, law(run)
    return Made(ce=[3.0] * K, norm=[8.0, *np.linspace(last, last / 2, K)[::-1]])


def rows(c: Fake) -> pd.DataFrame:
    return pd.DataFrame(studyclaims.evaluate(c)).set_index("claim")


@pytest.fixture(scope="module")
def laws() -> Study:
    return load("laws")


def test_exponents_and_their_interval_are_those_of_plain_numpy(laws: Study):
    c = collected(laws, of_law)
    row = rows(c).loc["rate-drives.perloop-rms"]
    rates = {"perloop-rms-learning-rate0.002667": 2.667e-3, "perloop-rms": 8e-3,
             "perloop-rms-learning-rate0.024": 2.4e-2}  # fmt: skip
    by_run = {(run.cell, run.seed): law(run) for run in laws.runs}
    slopes = [
        np.polyfit(np.log(list(rates.values())), [log(by_run[cell, s]) for cell in rates], 1)[0]
        for s in SEEDS
    ]
    low, high = stats.t.interval(0.95, 2, np.mean(slopes), stats.sem(slopes))
    assert (row["ours"], row["low"], row["high"]) == pytest.approx((np.mean(slopes), low, high))
    assert row["verdict"] == "supported" and row["unit"] == "exponent" and row["seeds"] == 3
    doubling = Runs(c).slopes("0.1m", "loops", "perloop-raw", "gain", "linear-log2")
    assert doubling == pytest.approx(dict.fromkeys(SEEDS, 0.0))


def test_the_law_is_carried_to_settings_that_it_was_not_fitted_on(laws: Study):
    row = rows(collected(laws, of_law)).loc["law-predicts.perloop-rms"]
    assert row["verdict"] == "supported" and row["ours"] == pytest.approx(1, abs=0.05)

    def bent(run: Run) -> Made:
        # All three together do not multiply: only there is the norm another one.
        made, off = of_law(run), "leftout-all" in run.cell
        return replace(made, norm=[x * (1.5 if off else 1.0) for x in made.norm])

    row = rows(collected(laws, bent)).loc["law-predicts.perloop-rms"]
    assert row["verdict"] == "contradicted" and row["ours"] == pytest.approx(1 / 1.5, rel=0.05)
    assert "perloop-rms-leftout-all 0.6" in row["note"]


def test_what_does_not_depend_on_a_factor_is_said_not_to(laws: Study):
    flat = rows(collected(laws, lambda run: replace(of_law(run), norm=[8.0, *[20.0] * 8])))
    for name in ("rate-drives", "steps-drive", "loops-drive"):
        assert flat.loc[f"{name}.perloop-raw", "verdict"] == "contradicted"
    loud = rows(
        collected(laws, lambda run: replace(of_law(run), norm=[8, *[exp(noise(run, 2))] * 8]))
    )
    assert loud.loc["steps-drive.perloop-rms", "verdict"] == "inconclusive"


def test_missing_and_failed_runs(laws: Study):
    def lost(run: Run) -> str:
        at = run.cell == "perloop-rms-steps800" and run.seed == 101
        return "not trained" if at else ""

    found = rows(collected(laws, of_law, lost))
    assert found.loc["steps-drive.perloop-rms", "verdict"] == "not decided"
    assert "no value of seed 101" in found.loc["steps-drive.perloop-rms", "note"]
    # The point of one sweep is nothing to another.
    assert found.loc["rate-drives.perloop-rms", "verdict"] == "supported"
    failed = rows(collected(laws, of_law, lambda r: "failed at step 3: inf" if lost(r) else ""))
    row = failed.loc["steps-drive.perloop-rms"]
    assert row["verdict"] == "supported" and "seed 101: perloop-rms-steps800 failed" in row["note"]
    assert row["seeds"] == 2
    one = rows(collected(load("laws", grid={"seeds": [42]}), of_law))
    assert set(one["verdict"]) == {"one seed"}


# --- the remedies' forms: a value, a difference, a ratio -----------------------------------------

REMEDY: dict[str, Any] = {
    "cells": {"perloop-rms": None, "perloop-raw": None},
    "sizes": {"44m": None},
    "training": {"steps": 500, "epochs": None},
    "claims": {
        "holds": {
            "claim": "holds the norm",
            "parts": [
                {"quantity": "value", "of": "growth", "cell": "perloop-raw",
                 "supported": {"below": 2}, "contradicted": {"above": 2}},
            ],
        },
        "depth": {
            "claim": "brings depth to life",
            "parts": [
                {"quantity": "difference", "of": "gain", "cell": "perloop-raw",
                 "against": "perloop-rms", "supported": {"above": 0.02},
                 "contradicted": {"below": 0.02}},
            ],
        },
        "twice": {
            "claim": "the recurrence's",
            "parts": [
                {"quantity": "ratio", "of": "norm", "to": "first-norm", "cell": "perloop-rms",
                 "against": "perloop-raw", "supported": {"above": 2}, "contradicted": {"below": 2}},
                {"quantity": "ratio", "of": "norm", "cell": "perloop-rms",
                 "against": "perloop-raw", "supported": {"above": 2}, "contradicted": {"below": 2}},
            ],
        },
    },
}  # fmt: skip


def remedy(run: Run) -> Made:
    """The remedy holds the norm and brings a tenth of a nat; the baseline neither."""
    last = exp(noise(run, 0.02))
    if run.cell == "perloop-rms":
        return Made([2.7, 2.7, 2.7, 2.7 + noise(run, 0.002)], [10, 400, 410, 420, 430 * last])
    return Made([2.8, 2.75, 2.72, 2.7 + noise(run, 0.002)], [10, 11 * last, 12, 12, 12 * last])


def study_of(override: dict[str, Any]) -> Study:
    return Study.load(ROOT / "config.yaml", override=override)


def test_a_value_a_difference_and_a_ratio_against_plain_numpy():
    study = study_of(REMEDY)
    c = rows(collected(study, remedy))
    assert set(c["verdict"]) == {"supported"}
    made = {(run.cell, run.seed): remedy(run) for run in study.runs}
    raw, rms = ([made[cell, s] for s in SEEDS] for cell in ("perloop-raw", "perloop-rms"))

    def t(values: list[float]) -> tuple[float, float, float]:
        return (
            float(np.mean(values)),
            *stats.t.interval(0.95, 2, np.mean(values), stats.sem(values)),
        )

    def row(name: str) -> tuple[float, ...]:
        return tuple(c.loc[name, ["ours", "low", "high"]])

    assert row("holds") == pytest.approx(np.exp(t([log(m.norm[4] / m.norm[0]) for m in raw])))
    gains = [(a.ce[0] - a.ce[3]) - (b.ce[0] - b.ce[3]) for a, b in zip(raw, rms, strict=True)]
    assert row("depth") == pytest.approx(t(gains))
    ratios = [log(b.norm[4] / a.norm[1]) for a, b in zip(raw, rms, strict=True)]
    assert row("twice") == pytest.approx(np.exp(t(ratios)))


def test_a_remedy_that_does_nothing_is_contradicted():
    base = Made([2.7] * 4, [10, 400, 410, 420, 430])
    found = rows(collected(study_of(REMEDY), lambda run: base))
    assert dict(found["verdict"]) == dict.fromkeys(["holds", "depth", "twice"], "contradicted")


def test_one_of_two_parts_alone_decides_nothing():
    def half(run: Run) -> Made:
        made = remedy(run)
        return made if run.cell == "perloop-rms" else replace(made, norm=[10, 11, 12, 12, 400])

    found = rows(collected(study_of(REMEDY), half))["verdict"]
    assert found["twice"] == "inconclusive"
    # Its norm grows where it is measured, in evaluation; what it does for depth stands.
    assert found["holds"] == "contradicted" and found["depth"] == "supported"


def test_a_model_that_has_not_learned_says_nothing_of_depth_but_of_its_norm():
    def blind(run: Run) -> Made:
        made = remedy(run)
        weak = run.cell == "perloop-raw" and run.seed == 202
        return replace(made, ce=[UNIGRAM - 0.2] * 4) if weak else made

    found = rows(collected(study_of(REMEDY), blind))
    assert found.loc["depth", "verdict"] == "not measured"
    assert "has not learned: perloop-raw misses" in found.loc["depth", "note"]
    assert "by 0.10 nats" in found.loc["depth", "note"]
    assert found.loc["holds", "verdict"] == "supported"


@pytest.mark.parametrize(
    ("values", "needed"),
    [
        # 1.5 is a factor of 4/3 from 2; 0.02 above it by the difference to 0.05.
        (
            {"of": "growth", "supported": {"below": 2}, "contradicted": {"above": 2}},
            "factor of 1.33",
        ),
        ({"of": "gain", "supported": {"above": 1}, "contradicted": {"below": 1.2}}, "± 0.5 "),
        ({"of": "gain", "supported": {"above": 2}}, "neither way"),
        ({"of": "gain", "supported": {"above": 2}, "contradicted": {"below": 9}}, ""),
    ],
)
def test_what_an_inconclusive_part_would_need(values: dict[str, Any], needed: str):
    part = TypeAdapter(Part).validate_python({"quantity": "value", "cell": "a", **values})
    seeds = {1: 1.5 / 1.4, 2: 1.5, 3: 1.5 * 1.4}
    positive = part.of == "growth"
    found = Found({s: log(x) if positive else x + 1.5 - np.mean([*seeds.values()])
                   for s, x in seeds.items()}, positive)  # fmt: skip
    said = undecided(part, found)
    assert needed in said and bool(said) == bool(needed)


# --- the horizon ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "beyond, verdict, note",
    [
        (lambda k: 2.7, "supported", "stable to 64"),
        # A norm that grows in evaluation alone: well at every trained exit, lost at 32.
        (lambda k: 2.7 + 0.01 * max(k - 16, 0), "contradicted", "stable to 16"),
        (lambda k: 9.0, "contradicted", "not stable at 8"),
    ],
)
def test_the_largest_stable_depth(beyond: Callable[[int], float], verdict: str, note: str):
    def made(run: Run) -> Made:
        K = run.spec.model.loops
        return Made([2.7] * K, [10.0] * (K + 1), beyond=lambda k: beyond(k) + noise(run, 1e-3))

    row = rows(collected(load("horizon"), made)).loc["stable-to-64.perloop-rms"]
    assert row["verdict"] == verdict and note in row["note"]


def test_an_exit_of_one_cell_against_anothers():
    part = {"quantity": "beyond", "cell": "perloop-raw", "against": "perloop-rms", "at": 8,
            "supported": {"below": -0.05}, "contradicted": {"above": -0.05}}  # fmt: skip
    study = study_of(REMEDY | {"claims": {"better": {"claim": "better", "parts": [part]}}})

    def made(run: Run) -> Made:
        far = 3.0 if run.cell == "perloop-rms" else 2.8
        return Made([2.7] * 4, [10.0] * 5, beyond=lambda k: far + noise(run, 0.01))

    row = rows(collected(study, made)).loc["better"]
    pairs = [made(run).beyond(8) for run in study.runs]  # type: ignore[misc]
    assert row["ours"] == pytest.approx(np.mean(pairs[3:]) - np.mean(pairs[:3]))
    assert row["verdict"] == "supported"


# --- through files -------------------------------------------------------------------------------


def test_a_study_with_claims_has_their_ledger_and_not_the_papers(tmp_path: Path):
    study = synthetic.make_study(
        tmp_path, ["44m"], ["perloop-rms", "perloop-raw"], steps=200, claims=REMEDY["claims"]
    )
    synthetic.write(study)
    collect(study, tmp_path / "collected")
    claims.write(tmp_path / "collected", tmp_path)
    ledger = pd.read_csv(tmp_path / "claims.csv")
    assert list(ledger["claim"]) == ["holds", "depth", "twice"]
    # As in synthetic.PAPER: 39 and 17, 4.68 and 4.55 against 4.98 and 4.97.
    assert ledger["ours"][0] == pytest.approx(0.7 * 17 / 39, rel=0.1)
    assert ledger["ours"][1] == pytest.approx(log(4.68 / 4.55) - log(4.98 / 4.97), abs=1e-3)
    assert "holds the norm" in (tmp_path / "claims.md").read_text()
    assert claims.summary(tmp_path / "claims.csv").startswith("Claims at 44m: ")
