"""The studies of causes and laws are what docs/criteria.md says of them."""

import pytest

from blindspot.config.flops import training_per_token
from blindspot.config.study import Study
from blindspot.config.studyclaims import judged
from synthetic_laws import load


def budgets(study: Study) -> dict[str, float]:
    """Training FLOPs of each cell."""
    found = {}
    for run in study.runs:
        spec = run.spec
        tokens = (spec.training.steps or 0) * spec.batch * spec.windows.length
        found[run.cell] = training_per_token(spec.model, spec.objective) * tokens
    return found


def test_remedies_have_equal_training_flops():
    study = load("remedies")
    flops = budgets(study)
    assert {seed for run in study.runs for seed in [run.seed]} == {42, 101, 202, 303, 404}
    for cell, spent in flops.items():
        assert spent == pytest.approx(flops["perloop-rms"], rel=0.02), cell
    # A remedy that nobody judges would be run for nothing.
    claims = judged(study.config)
    for cell in flops.keys() - {"perloop-rms"}:
        for name in ("holds-the-norm", "brings-depth-to-life", "costs-nothing"):
            assert f"{name}.{cell}" in claims


def test_a_remedy_of_more_flops_would_be_noticed():
    cells = {"perloop-rms": None, "single": {"loss": "per-loop", "readout": "rms", "loops": 1}}
    flops = budgets(load("remedies", cells=cells, claims={}))
    assert flops["single"] == pytest.approx(flops["perloop-rms"] / 4, rel=1e-9)


@pytest.mark.parametrize("readout", ["rms", "raw"])
def test_laws_vary_one_factor_at_a_time(readout: str):
    study = load("laws")
    assert {run.seed for run in study.runs} == {42, 101, 202}
    cell = f"perloop-{readout}"
    rate = study.config.training.learning_rate
    values = {
        key: sweep.over[key]
        for sweep in study.config.sweeps.values()
        if cell in sweep.cells
        for key in sweep.over
    }
    assert values["training.learning_rate"] == pytest.approx([rate / 3, rate, rate * 3], rel=1e-3)
    assert values["training.weight_decay"] == [0, 0.01, 0.1, 1]
    assert values["init_std"] == ["default", 0.02, 0.1, 0.5]
    assert values["loops"] == [1, 2, 4, 8]
    assert values["model.d_model"] == [32, 64, 128]
    assert values["training.steps"] == [400, 800, 1600]
    left = {
        run.cell.rpartition("-")[2]: (run.spec.training.learning_rate / rate,
                                      run.spec.training.steps, run.spec.model.loops)
        for run in study.runs
        if run.cell.startswith(f"{cell}-leftout")
    }  # fmt: skip
    expected = {"rate": (2, 400, 4), "steps": (1, 1200, 4), "loops": (1, 400, 6)}
    assert left == {key: pytest.approx(x) for key, x in expected.items()} | {"all": (2, 1200, 6)}
    # Nothing that was left out is a point of a sweep.
    swept = {run.cell for run in study.runs if "leftout" not in run.cell}
    assert len(swept) == 2 * (1 + 2 + 3 + 3 + 3 + 2 + 2 + 1)


def test_horizon_scores_exits_to_64():
    study = load("horizon")
    assert {run.seed for run in study.runs} == {42, 101, 202}
    assert {8, 16, 32, 64} <= {*study.config.measurement.depths_beyond}
    assert {run.spec.training.steps for run in study.runs} == {400}
    for name, claim in judged(study.config).items():
        (part,) = claim.parts
        ladder = (8, 16, 32) if name.startswith("stable") else ()
        assert part.model_dump()["ladder"] == ladder
    assert len(study.runs) == 30


def test_doses_are_those_of_the_criteria():
    study = load("dose")
    doses, seeds = {}, {}
    for run in study.runs:
        penalty = run.spec.objective.penalty
        scale = run.spec.model.interloop_scale or (penalty.target if penalty else None)
        kind = "target" if penalty else "reset"
        doses.setdefault(kind, set()).add(scale)
        seeds.setdefault(kind, set()).add(run.seed)
        assert run.spec.training.steps == 500 and run.spec.model.readout == "rms"
    assert doses == {"reset": {1, 4, 16, 64, 256}, "target": {1, 4, 16, 64}}
    assert {kind: len(found) for kind, found in seeds.items()} == {"reset": 5, "target": 3}
    assert len(study.runs) == 37


def test_the_long_doses_differ_from_the_short_ones_in_steps_alone():
    short, long = load("dose"), load("dose-long")

    def resets(study, steps):
        return {
            (run.spec.model.interloop_scale, run.seed): run.spec.model_copy(
                update={"training": run.spec.training.model_copy(update=steps)}
            ).identity()
            for run in study.runs
            if run.spec.model.interloop == "reset"
        }

    same = {"steps": 0, "log_every": 1, "validate_every": 1}
    assert len(resets(long, same)) == 25 and resets(long, same) == resets(short, same)
    assert {run.spec.training.steps for run in long.runs} == {2000}
    assert {run.cell for run in long.runs if run.spec.model.interloop == "none"} == {"perloop-rms"}
    judgements = ("scale-is-the-cause", "stack-grows-with-the-dose")
    for name in judgements:
        assert judged(short.config)[name] == judged(long.config)[name]
