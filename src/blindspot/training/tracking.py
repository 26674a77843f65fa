"""What an experiment tracker is told while a run trains: the numbers of trajectory.csv.

`execution.tracking` names one of three libraries. Each is installed by hand, is loaded only where
it is asked for, and writes to work/tracking/ without a network, unless its own environment
variables say otherwise. A run that is resumed goes on in the same tracked run. Nothing of it is a
result, and nothing of it may end a training: a tracker that fails is told no more, which is said
once.
"""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from blindspot.config.execution import Tracking
from blindspot.config.spec import RunSpec
from blindspot.declared.training import TRAJECTORY

#: Tracked runs of all studies are of one project: a run may belong to several studies.
PROJECT = "blindspot"
#: What takes `metrics` of one step, and what ends the tracked run; failed: its training did.
Log = Callable[[Mapping[str, float], int], None]
Finish = Callable[[bool], None]


class Tracker:
    """A tracked run, or none. `say` is given one line where the library fails."""

    def __init__(self, kind: Tracking | None, say: Callable[[str], None]) -> None:
        self._kind, self._say = kind, say
        self._log: Log | None = None
        self._finish: Finish | None = None

    def start(self, name: str, spec: RunSpec, folder: Path) -> None:
        """Begin the tracked run, or go on with it."""
        if self._kind is None:
            return
        begin = OPEN[self._kind]

        def take() -> None:
            folder.mkdir(parents=True, exist_ok=True)
            self._log, self._finish = begin(name, spec.hash, flat(spec.identity()), folder)

        self._try(take)

    def add(self, rows: Sequence[Sequence[Any]]) -> None:
        """Rows of trajectory.csv, all of one step."""
        if self._log is None:
            return
        log = self._log
        self._try(lambda: log(metrics(rows), int(rows[0][0])))

    def end(self, failed: bool = False) -> None:
        """No more comes, for now (an interrupted run goes on later) or for good."""
        finish, self._log, self._finish = self._finish, None, None
        if finish is not None:
            self._try(lambda: finish(failed))

    def _try(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:  # whatever a library raises is its own affair
            self._log = self._finish = None
            self._say(f"{self._kind} is told no more of this run: {type(error).__name__}: {error}")


def metrics(rows: Sequence[Sequence[Any]]) -> dict[str, float]:
    """`<split>/<column>/<k>` of rows of trajectory.csv; grad_norm, which is the run's, has no k."""
    found = {}
    for row in rows:
        of = dict(zip(TRAJECTORY.header, row, strict=True))
        for column in ("ce", "norm_mean", "norm_p50", "norm_p99", "norm_max"):
            if of[column] != "":
                found[f"{of['split']}/{column}/{of['k']}"] = float(of[column])
        if of["grad_norm"] != "":
            found[f"{of['split']}/grad_norm"] = float(of["grad_norm"])
    return found


def flat(values: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Nested settings by dotted names."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        inner = flat(value, f"{above}{key}.") if isinstance(value, Mapping) else None
        found |= {f"{above}{key}": value} if inner is None else inner
    return found


def _trackio(name: str, run: str, config: Mapping[str, Any], folder: Path) -> tuple[Log, Finish]:
    os.environ.setdefault("TRACKIO_DIR", str(folder))  # read when it is loaded
    import trackio

    # The name ends in the hash, and it is by the name that trackio finds a run again.
    tracked = trackio.init(project=PROJECT, name=name, config=dict(config), resume="allow")
    return (lambda values, step: tracked.log(dict(values), step=step)), lambda _: tracked.finish()


def _wandb(name: str, run: str, config: Mapping[str, Any], folder: Path) -> tuple[Log, Finish]:
    import wandb

    tracked = wandb.init(
        project=os.environ.get("WANDB_PROJECT", PROJECT),
        id=run,
        name=name,
        config=dict(config),
        dir=str(folder),
        mode=os.environ.get("WANDB_MODE", "offline"),
        resume="allow",
        settings=wandb.Settings(silent=True),
    )
    return (
        lambda values, step: tracked.log(dict(values), step=step),
        lambda failed: tracked.finish(exit_code=int(failed)),
    )


def _mlflow(name: str, run: str, config: Mapping[str, Any], folder: Path) -> tuple[Log, Finish]:
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param

    store = os.environ.get("MLFLOW_TRACKING_URI", f"sqlite:///{(folder / 'mlflow.db').resolve()}")
    client = MlflowClient(store)
    experiment = client.get_experiment_by_name(PROJECT)
    at = experiment.experiment_id if experiment else client.create_experiment(PROJECT)
    found = client.search_runs([at], filter_string=f"tags.run = '{run}'")
    if found:
        own = found[0].info.run_id
        client.set_terminated(own, "RUNNING")
    else:
        own = client.create_run(at, run_name=name, tags={"run": run}).info.run_id
        client.log_batch(own, params=[Param(key, str(value)) for key, value in config.items()])

    def log(values: Mapping[str, float], step: int) -> None:
        now = int(1000 * time.time())
        client.log_batch(own, metrics=[Metric(key, x, now, step) for key, x in values.items()])

    return log, lambda failed: client.set_terminated(own, "FAILED" if failed else "FINISHED")


OPEN: dict[Tracking, Callable[..., tuple[Log, Finish]]] = {
    "trackio": _trackio,
    "wandb": _wandb,
    "mlflow": _mlflow,
}
