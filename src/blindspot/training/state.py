"""What earlier attempts left in a run's state folder, and whether training can continue from it."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blindspot import tensorfile
from blindspot.config.flops import parameters
from blindspot.config.runfiles import PROGRESS, WEIGHTS, checkpoints, stray_checkpoints
from blindspot.config.spec import RunSpec
from blindspot.data.tokens import Tokens, require_same
from blindspot.errors import BlindspotError
from blindspot.files import leftovers
from blindspot.training import remake
from blindspot.training.checkpoint import KEEP
from blindspot.training.job import Job
from blindspot.training.runlog import LOG, say


@dataclass(frozen=True)
class Found:
    """Where an attempt begins; by default, at step 0."""

    #: What lies beside the weights of a run that was trained to its end.
    trained: dict[str, Any] | None = None
    #: The newest whole checkpoint, and its file.
    saved: tensorfile.Saved | None = None
    path: Path | None = None
    #: Why it starts from nothing although there was an earlier attempt.
    started_over: str | None = None


def find(job: Job) -> Found:
    """Look for what can be taken up, naming in the log what is passed over; the caller holds the
    run's lock. Raises `BlindspotError` for what belongs to another run or to other tokens."""
    asked = remake.clear_if_asked(job.state, job.out)
    for path in leftovers(job.state):  # of attempts that were killed inside a save
        path.unlink(missing_ok=True)
    earlier = any((job.state / name).exists() for name in (LOG, PROGRESS))
    weights = job.state / WEIGHTS
    if weights.exists():
        return Found(trained=_trained(job, weights))
    for path in stray_checkpoints(job.state):
        say(job.name, job.state, f"{path}: named as a checkpoint, but not a file; left alone")
    there = checkpoints(job.state)
    for number, path in enumerate(there, start=1):
        try:
            saved = tensorfile.read(path)
        except BlindspotError as error:
            more = "; trying the one before it" if number < len(there) else ""
            say(job.name, job.state, f"{error}{more}")
            continue
        _require_own(job, path, saved.meta)
        return Found(saved=saved, path=path)
    reason = None
    if asked:
        reason = "reuse: false asks for it"
    elif there:
        reason = f"of its checkpoints ({', '.join(p.name for p in there)}) none is whole"
    elif earlier:
        reason = "an earlier attempt left no checkpoint"
    if reason:
        say(job.name, job.state, f"starts from nothing: {reason}")
    return Found(started_over=reason)


def _trained(job: Job, weights: Path) -> dict[str, Any]:
    try:
        meta = tensorfile.read(weights).meta
    except BlindspotError as error:
        raise BlindspotError(f"{error}; delete it to train this run again") from None
    _require_own(job, weights, meta)
    say(job.name, job.state, f"already trained ({weights}); writing its results again")
    return meta


def _require_own(job: Job, path: Path, meta: dict[str, Any]) -> None:
    """Weights of another run, or of other tokens, cannot be continued as this one."""
    if meta["run"] != job.spec.hash:
        raise BlindspotError(
            f"{path}: belongs to run {meta['run']}, not to {job.spec.hash}; "
            f"move it away, or give this run another state folder"
        )
    tokens = Tokens.open(job.tokens, verify=False, data=job.spec.data)
    if unknown := require_same(tokens, meta.get("tokens"), path):
        say(job.name, job.state, unknown)


def require_room(state: Path, spec: RunSpec) -> None:
    """Refuse to start where the run's checkpoints will not fit: parameters and two moments, in
    float32, as many times as checkpoints are kept, and once more while one is written."""
    there = sum(path.stat().st_size for path in checkpoints(state))
    needed = (KEEP + 1) * 12 * parameters(spec.model) - there
    free = shutil.disk_usage(state).free
    if free < needed:
        raise BlindspotError(
            f"{state}: {free / 2**20:,.0f} MiB are free, this run's checkpoints need "
            f"{needed / 2**20:,.0f}; make room, or set `work` in the config to a larger disk"
        )
