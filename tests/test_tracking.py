"""Experiment trackers: what each library is asked for, with stand-ins of all three and, where one
is installed, with itself; and that none of them can end a training."""

import json
import os
import sqlite3
import sys
import tomllib
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from blindspot.config.execution import Execution
from blindspot.config.study import Study
from blindspot.errors import InterruptedRunError, NonFiniteError
from blindspot.training import remake, tracking
from blindspot.training.engine import Engine
from blindspot.training.train import train
from test_train_faults import before_steps, gradient
from toys import ROOT
from training import assert_same_run, log_of, toy_job, toy_tokens, trajectory

KINDS = ["trackio", "wandb", "mlflow"]


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory):
    return toy_tokens(tmp_path_factory.mktemp("tokens"))


class Told:
    """What a stand-in was told: how each attempt began, what was logged, how it ended."""

    def __init__(self) -> None:
        self.begun: list[dict[str, Any]] = []
        self.logged: list[tuple[int, dict[str, float]]] = []
        self.ended: list[Any] = []

    def log(self, values: dict[str, float], step: int) -> None:
        self.logged.append((step, values))


def trackio(told: Told) -> dict[str, Any]:
    def init(**given: Any) -> SimpleNamespace:
        keys = ("config", "resume", "auto_log_cpu")
        told.begun.append({"run": given["name"]} | {key: given.get(key) for key in keys})
        assert given["project"] == "blindspot"
        return SimpleNamespace(log=told.log, finish=lambda: told.ended.append(None))

    return {"trackio": {"init": init}}


def wandb(told: Told) -> dict[str, Any]:
    def init(**given: Any) -> SimpleNamespace:
        told.begun.append({"run": given["id"], "config": given["config"]})
        assert given["resume"] == "allow" and given["mode"] == "offline"
        assert Path(given["dir"]).is_dir()
        return SimpleNamespace(
            log=told.log, finish=lambda exit_code: told.ended.append(bool(exit_code))
        )

    return {"wandb": {"init": init, "Settings": SimpleNamespace}}


def mlflow(told: Told) -> dict[str, Any]:
    class Client:
        runs: dict[str, str] = {}  # noqa: RUF012
        kept: dict[str, Any] = {}  # noqa: RUF012

        def __init__(self, store: str) -> None:
            assert store.startswith("sqlite:////") and store.endswith("/mlflow.db")

        def get_experiment_by_name(self, name: str) -> SimpleNamespace | None:
            assert name == "blindspot"
            return SimpleNamespace(experiment_id="1") if self.runs else None

        def create_experiment(self, name: str, artifact_location: str | None = None) -> str:
            return "1"

        def search_runs(self, at: list[str], filter_string: str) -> list[SimpleNamespace]:
            run = filter_string.split("'")[1]
            own = self.runs.get(run)
            if own:
                told.begun.append({"run": run, "config": self.kept})
            return [SimpleNamespace(info=SimpleNamespace(run_id=own))] if own else []

        def create_run(self, at: str, run_name: str, tags: dict[str, str]) -> SimpleNamespace:
            self.runs[tags["run"]] = "one"
            told.begun.append({"run": tags["run"], "config": self.kept})
            return SimpleNamespace(info=SimpleNamespace(run_id="one"))

        def log_batch(self, own: str, metrics: Any = (), params: Any = ()) -> None:
            self.kept.update(params)
            if metrics:
                (step,) = {m[3] for m in metrics}
                told.log({m[0]: m[1] for m in metrics}, step)

        def set_terminated(self, own: str, status: str) -> None:
            if status != "RUNNING":
                told.ended.append(status == "FAILED")

    entities = {"Metric": lambda *given: given, "Param": lambda key, value: (key, value)}
    return {"mlflow": {"MlflowClient": Client}, "mlflow.entities": entities}


@pytest.fixture(params=KINDS)
def told(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[str, Told]:
    """A library's name, and what its stand-in is told."""
    for name in ("WANDB_MODE", "WANDB_PROJECT", "MLFLOW_TRACKING_URI", "TRACKIO_DIR"):
        monkeypatch.delenv(name, raising=False)
    found = Told()
    makers = {"trackio": trackio, "wandb": wandb, "mlflow": mlflow}
    for name, contents in makers[request.param](found).items():
        module = ModuleType(name)
        vars(module).update(contents)
        monkeypatch.setitem(sys.modules, name, module)
    return request.param, found


def tracked(tokens: Any, folder: Path, kind: str, **changes: Any) -> Any:
    job = toy_job(tokens, folder, execution={"tracking": kind}, **changes)
    job.tracking = folder / "tracking"
    return job


def expected(job: Any) -> dict[int, dict[str, float]]:
    """By step, all numbers of trajectory.csv by their names."""
    found: dict[int, dict[str, float]] = {}
    for row in trajectory(job):
        step = found.setdefault(int(row["step"]), {})
        for name in ("ce", "norm_mean", "norm_p50", "norm_p99", "norm_max"):
            if row[name]:
                step[f"{row['split']}/{name}/{row['k']}"] = float(row[name])
        if row["grad_norm"]:
            step[f"{row['split']}/grad_norm"] = float(row["grad_norm"])
    return found


def merged(logged: list[tuple[int, dict[str, float]]]) -> dict[int, dict[str, float]]:
    found: dict[int, dict[str, float]] = {}
    for step, values in logged:
        found.setdefault(step, {}).update(values)
    return found


def test_a_tracker_is_told_the_numbers_of_the_trajectory(tokens, tmp_path, told):
    kind, heard = told
    job = tracked(tokens, tmp_path, kind)
    train(job)
    assert merged(heard.logged) == expected(job)
    (begun,) = heard.begun
    assert job.spec.hash in begun["run"]
    assert str(begun["config"]["training.learning_rate"]) == "0.003"
    assert str(begun["config"]["seed"]) == "5"
    assert len(heard.ended) == 1 and not heard.ended[0]


def test_a_resumed_run_goes_on_in_the_same_tracked_run(tokens, tmp_path, told, monkeypatch):
    kind, heard = told
    job = tracked(tokens, tmp_path, kind)
    step = Engine.step

    def stopping(self, ids, at, look=False):
        step(self, ids, at, look)
        if at + 1 == 12:
            from blindspot.training import stopping as signals

            signals.request(15)

    monkeypatch.setattr(Engine, "step", stopping)
    with pytest.raises(InterruptedRunError):
        train(job)
    monkeypatch.setattr(Engine, "step", step)
    train(job)
    assert len(heard.begun) == 2 and heard.begun[0]["run"] == heard.begun[1]["run"]
    assert len(heard.ended) == 2 and merged(heard.logged) == expected(job)
    # No step was told twice, but for what a step's training and validation tell apart.
    once = [(s, name) for s, values in heard.logged for name in values]
    assert len(once) == len(set(once))


def test_a_tracker_that_fails_ends_no_training_and_changes_no_run(tokens, tmp_path, told):
    kind, heard = told

    def broken(values: dict[str, float], step: int) -> None:
        heard.logged.append((step, values))
        if step == 5:
            raise RuntimeError("the disk of the tracker is full")

    heard.log = broken  # type: ignore[method-assign]
    job = tracked(tokens, tmp_path / "a", kind)
    train(job)
    said = f"{kind} is told no more of this run: RuntimeError: the disk of the tracker is full"
    assert log_of(job).count(said) == 1
    assert max(step for step, _ in heard.logged) == 5
    plain = toy_job(tokens, tmp_path / "b")
    train(plain)
    assert_same_run(job, plain)


def test_a_run_that_fails_is_said_to_have_failed(tokens, tmp_path, told, monkeypatch):
    kind, heard = told

    before_steps(monkeypatch, {7}, gradient(float("nan")))
    with pytest.raises(NonFiniteError):
        train(tracked(tokens, tmp_path, kind))
    assert heard.ended == [None] if kind == "trackio" else heard.ended == [True]


def test_a_library_that_cannot_begin_ends_no_training(tokens, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    job = tracked(tokens, tmp_path, "wandb")
    train(job)
    assert "wandb is told no more of this run: ModuleNotFoundError" in log_of(job)
    assert (job.out / "run.json").exists()


def test_it_is_no_part_of_any_identity():
    plain = Study.load(ROOT / "config.yaml")
    other = Study.load(ROOT / "config.yaml", override={"execution": {"tracking": "mlflow"}})
    assert [run.name for run in plain.runs] == [run.name for run in other.runs]
    assert "tracking" not in Execution().identity()
    with pytest.raises(Exception, match="trackio"):
        Study.load(ROOT / "config.yaml", override={"execution": {"tracking": "neptune"}})


def test_no_library_is_loaded_where_none_is_asked_for(tokens, tmp_path):
    train(toy_job(tokens, tmp_path))
    assert not {"trackio", "wandb", "mlflow"} & {*sys.modules}


def by_trackio(folder: Path, name: str) -> dict[int, dict[str, float]]:
    with sqlite3.connect(folder / "blindspot.db") as file:
        rows = file.execute("select step, metrics from metrics where run_name = ?", (name,))
        return merged([(step, json.loads(text)) for step, text in rows])


def by_mlflow(folder: Path, name: str) -> dict[int, dict[str, float]]:
    with sqlite3.connect(folder / "mlflow.db") as file:
        rows = file.execute("select step, key, value from metrics")
        return merged([(step, {key: value}) for step, key, value in rows])


@pytest.mark.extra
@pytest.mark.parametrize(
    ("kind", "read"), [("trackio", by_trackio), ("mlflow", by_mlflow), ("wandb", None)]
)
def test_the_library_itself(
    tokens, tmp_path, monkeypatch, kind: str, read: Callable[..., dict[int, Any]] | None
):
    if not find_spec(kind):
        pytest.skip(f"{kind} is not installed here")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "tracking"))
    job = tracked(tokens, tmp_path, kind)
    train(job)
    assert "told no more" not in log_of(job)
    if read is None:
        (run,) = tmp_path.glob(f"tracking/wandb/offline-run-*-{job.spec.hash}-*/*.wandb")
        assert run.stat().st_size > 1000
    else:
        found = read(tmp_path / "tracking", job.name)
        assert {step: found[step] for step in expected(job)} == expected(job)


def test_metrics_are_named_as_columns():
    row = [20, 1024, "train", 4, "2.5", "3", "4", "5", "6", ""]
    first = [20, 1024, "train", 0, "", "1", "1", "1", "1", "0.5"]
    found = tracking.metrics([first, row])
    assert found["train/ce/4"] == 2.5 and found["train/norm_max/4"] == 6
    assert found["train/grad_norm"] == 0.5 and "train/ce/0" not in found


class PowerCut(BaseException):
    pass


def killed(monkeypatch: pytest.MonkeyPatch, job: Any, at: int) -> None:
    """An attempt that dies after step `at`, without a word."""

    def dying(self: Engine, ids: Any, step: int, look: bool = False) -> None:
        if step == at:
            raise PowerCut
        real(self, ids, step, look)

    real = Engine.step
    with monkeypatch.context() as patch, pytest.raises(PowerCut):
        patch.setattr(Engine, "step", dying)
        train(job)


def pairs(logged: list[tuple[int, dict[str, float]]]) -> list[tuple[int, str]]:
    return [(step, name) for step, values in logged for name in values]


def test_a_step_that_a_kill_has_trained_twice_is_logged_once(tokens, tmp_path, told, monkeypatch):
    kind, heard = told
    job = tracked(tokens, tmp_path, kind)
    job.execution = job.execution.model_copy(update={"checkpoint_steps": 4})
    killed(monkeypatch, job, 3)  # no checkpoint: from nothing again
    killed(monkeypatch, job, 11)  # validated at 10, saved at 8
    train(job)
    assert len(pairs(heard.logged)) == len(set(pairs(heard.logged)))
    assert merged(heard.logged) == expected(job)
    assert len({begun["run"] for begun in heard.begun}) == 1


def test_tracking_that_is_asked_for_late_is_told_what_was_before(
    tokens, tmp_path, told, monkeypatch
):
    kind, heard = told
    job = tracked(tokens, tmp_path, kind)
    job.execution = Execution(checkpoint_steps=4)
    killed(monkeypatch, job, 11)
    assert not heard.begun
    job.execution = Execution(tracking=kind)
    train(job)
    assert merged(heard.logged) == expected(job)


def test_a_run_that_is_made_anew_is_another_tracked_run(tokens, tmp_path, told):
    kind, heard = told
    job = tracked(tokens, tmp_path, kind, steps=2)
    train(job)
    remake.ask(job.state)
    train(job)
    assert len(heard.begun) == 2 and len(pairs(heard.logged)) == 2 * len(
        {(s, n) for s, values in expected(job).items() for n in values}
    )
    if kind == "trackio":  # which knows runs by name
        assert [begun["resume"] for begun in heard.begun] == ["never", "never"]
    else:
        assert heard.begun[0]["run"] != heard.begun[1]["run"]


def test_nothing_is_sent_anywhere_unless_the_user_says_so(tokens, tmp_path, told, monkeypatch):
    for name in tracking.OFFLINE:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "false")
    train(tracked(tokens, tmp_path, told[0], steps=1))
    assert os.environ["WANDB_ERROR_REPORTING"] == "false"
    assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == "false", "the user's own word stands"


def test_numbers_that_are_not_finite_are_left_out():
    found = tracking.metrics([[3, 96, "train", 0, "", "1.5", "1", "inf", "2", "nan"]])
    assert found == {"train/norm_mean/0": 1.5, "train/norm_p50/0": 1.0, "train/norm_max/0": 2.0}


def test_each_library_is_an_extra():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    for kind in KINDS:
        assert any(asked.startswith(kind) for asked in extras[kind])
