"""What an experiment tracker is told while a run trains: the numbers of trajectory.csv.

`execution.tracking` names one of three libraries. Each is an extra of this package, is imported
only if it is asked for, and writes to work/tracking/ without a network, unless its own environment
variables say otherwise. A resumed run continues the same tracked run, and a step that is trained
again is not logged again. Tracking is never a result and never ends a training: after a tracker's
first failure there is one warning, and training goes on without it.
"""

import json
import math
import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from filelock import FileLock

from blindspot.config.execution import Tracking
from blindspot.config.runfiles import TRACKED
from blindspot.config.spec import RunSpec
from blindspot.declared.training import TRAJECTORY

#: Tracked runs of all studies are of one project: a run may belong to several studies.
PROJECT = "blindspot"
#: Environment variables that are set unless the user has set them: nothing leaves this machine, and
#: training does not wait minutes for a server that does not answer.
OFFLINE = {
    "WANDB_MODE": "offline",
    "WANDB_ERROR_REPORTING": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
}
#: Seconds to wait while other trainings open the same store.
PATIENCE = 120
#: What takes `metrics` of one step, and what ends the tracked run; failed: its training did.
Log = Callable[[Mapping[str, float], int], None]
Finish = Callable[[bool], None]


class Tracker:
    """A tracked run, or none. `say` is given one line where the library fails."""

    def __init__(self, kind: Tracking | None, say: Callable[[str], None]) -> None:
        self._kind, self._say = kind, say
        self._log: Log | None = None
        self._finish: Finish | None = None
        #: The file that remembers the tracked run, its id, and the last step of each split that it
        #: has.
        self._record, self._id = Path(TRACKED), ""
        self._steps: dict[str, int] = {}

    def start(
        self, name: str, spec: RunSpec, folder: Path, state: Path, rows: Sequence[Sequence[Any]]
    ) -> None:
        """Begin the tracked run, or continue it. It gets those of `rows`, the run's trajectory so
        far, that it lacks: all of them if tracking was switched on midway.

        `folder` holds the library's files, `state` is the run's state folder.
        """
        if self._kind is None:
            return
        kind, self._record = self._kind, state / TRACKED

        def take() -> None:
            for variable, value in OFFLINE.items():
                os.environ.setdefault(variable, value)
            folder.mkdir(parents=True, exist_ok=True)
            known = self._recall()
            self._id = known or f"{spec.hash}-{secrets.token_hex(4)}"
            # Two trainings that start together would create the same database.
            with FileLock(folder / ".lock", timeout=PATIENCE):
                self._log, self._finish = OPEN[kind](
                    name, self._id, flat(spec.identity()), folder, known is not None
                )
            self._remember()

        self._try(take)
        self.add(rows)

    def add(self, rows: Sequence[Sequence[Any]]) -> None:
        """Rows of trajectory.csv, in order; steps that the tracked run has are left out."""
        if self._log is not None and rows:
            log = self._log
            self._try(lambda: self._add(log, rows))

    def _add(self, log: Log, rows: Sequence[Sequence[Any]]) -> None:
        for (step, split), of in groupby(rows, key=lambda row: (int(row[0]), row[2])):
            if step > self._steps.get(split, -1):
                log(metrics(list(of)), step)
                self._steps[split] = step
        self._remember()

    def _recall(self) -> str | None:
        """The id of the tracked run of an earlier attempt with the same library."""
        try:
            found = json.loads(self._record.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        if found["kind"] != self._kind:
            return None
        self._steps = found["steps"]
        return str(found["id"])

    def _remember(self) -> None:
        text = json.dumps({"kind": self._kind, "id": self._id, "steps": self._steps})
        temporary = self._record.with_name(f".{self._record.name}.new")
        temporary.write_text(text, encoding="utf-8")
        temporary.rename(self._record)

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
    """`<split>/<column>/<k>` of rows of trajectory.csv; grad_norm, which is the run's, has no k.

    Numbers that are not finite are left out: not every store takes them.
    """
    found = {}
    for row in rows:
        of = dict(zip(TRAJECTORY.header, row, strict=True))
        for column in ("ce", "norm_mean", "norm_p50", "norm_p99", "norm_max"):
            if of[column] != "":
                found[f"{of['split']}/{column}/{of['k']}"] = float(of[column])
        if of["grad_norm"] != "":
            found[f"{of['split']}/grad_norm"] = float(of["grad_norm"])
    return {name: value for name, value in found.items() if math.isfinite(value)}


def flat(values: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Nested settings by dotted names."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        inner = flat(value, f"{above}{key}.") if isinstance(value, Mapping) else None
        found |= {f"{above}{key}": value} if inner is None else inner
    return found


# Each opens a tracked run named `name` with the id `run`. `known`: an earlier attempt began it.


def _trackio(
    name: str, run: str, config: Mapping[str, Any], folder: Path, known: bool
) -> tuple[Log, Finish]:
    os.environ.setdefault("TRACKIO_DIR", str(folder))  # read when it is loaded
    import trackio

    # trackio finds a run again by its name, and of several with one name takes the newest.
    tracked = trackio.init(
        project=PROJECT,
        name=name,
        config=dict(config),
        resume="allow" if known else "never",
        auto_log_cpu=False,
        auto_log_gpu=False,
    )
    return (lambda values, step: tracked.log(dict(values), step=step)), lambda _: tracked.finish()


def _wandb(
    name: str, run: str, config: Mapping[str, Any], folder: Path, known: bool
) -> tuple[Log, Finish]:
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


def _mlflow(
    name: str, run: str, config: Mapping[str, Any], folder: Path, known: bool
) -> tuple[Log, Finish]:
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
