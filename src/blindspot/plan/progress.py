"""How far a run is: from its state folder's lock and what its trainer noted there. Only reads.

No lock is taken to see whether one is held, since a trainer that starts at that moment would be
refused.
"""

import json
import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from blindspot.config.runfiles import PROGRESS, RunFiles
from blindspot.config.study import Run, Study
from blindspot.plan.inventory import parse

#: A trainer on another machine counts as alive while its note is not older than this, in seconds.
FRESH = 900.0
#: Lines of a trainer's log from which on it is at work: what went wrong before is over.
ATTEMPT = re.compile(r": (resumes at step |starts from nothing|step \d+/\d+ )")


@dataclass(frozen=True)
class Holder:
    """Who has, or had, the lock of a state folder. `alive` is None where it can't be told."""

    host: str
    pid: int
    slurm_job: str | None
    alive: bool | None

    def __str__(self) -> str:
        job = f", Slurm job {self.slurm_job}" if self.slurm_job else ""
        return f"{self.host}, pid {self.pid}{job}"


def holder(folder: Path) -> Holder | None:
    """The process that `folder/lock` names; None where nobody ever held it."""
    path = folder / "lock"
    try:
        written, inode = path.read_text(encoding="utf-8"), path.stat().st_ino
    except OSError:
        return None
    try:
        value = json.loads(written)
        host, pid = str(value["host"]), int(value["pid"])
    except (ValueError, KeyError, TypeError):
        # Between taking the lock and writing who has it.
        host, pid, value = socket.gethostname(), 0, {}
    alive = _held(inode, pid) if host == socket.gethostname() else None
    return Holder(host, pid, value.get("slurm_job"), alive)


def _held(inode: int, pid: int) -> bool:
    """Whether a process of this machine holds a lock on that file."""
    try:
        lines = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    except OSError:  # not Linux
        return pid > 0 and _exists(pid)
    # "1: FLOCK  ADVISORY  WRITE 4711 08:01:1234567 0 EOF". The device is that of the mount, which
    # layered file systems report otherwise: the inode has to do.
    return any(line.split()[-3].endswith(f":{inode}") for line in lines if " -> " not in line)


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


@dataclass
class Progress:
    """A run's state. Numbers are None where nothing is known."""

    run: Run
    #: waiting | running | interrupted | failed | trained (weights, no results yet) | finished
    state: str
    step: int | None = None
    steps: int | None = None
    ce: float | None = None
    norm: float | None = None
    tokens_per_s: float | None = None
    #: Seconds to go, and since they were noted.
    left: float | None = None
    age: float | None = None
    resumes: int = 0
    holder: Holder | None = None
    error: str = ""
    measured: bool = False


def progress(study: Study, runs: Iterable[Run] | None = None) -> list[Progress]:
    """The state of each run of a study, in the order of the config."""
    found = [_progress(study, run) for run in (study.runs if runs is None else runs)]
    elsewhere = [p for p in found if p.holder and p.holder.alive is None]
    running = _slurm_jobs() if any(p.holder and p.holder.slurm_job for p in elsewhere) else None
    for one in elsewhere:
        assert one.holder is not None
        if running is not None and one.holder.slurm_job:
            alive = one.holder.slurm_job in running
        else:
            alive = one.age is not None and one.age < FRESH
        one.holder = replace(one.holder, alive=alive)
        if alive and one.state == "interrupted":
            one.state, one.error = "running", ""
    return found


def _progress(study: Study, run: Run) -> Progress:
    folder, state = study.results / "runs" / run.name, study.work / "runs" / run.name
    files = RunFiles(study)
    measured = files.is_measured(run.name)
    found = Progress(run, "waiting", steps=run.spec.training.steps, measured=measured)
    _read_note(state / PROGRESS, found)
    finished = files.finished(run.name)
    kind = "measure" if finished.exists() else "train"
    log = study.work / "logs" / kind / f"{run.name}.log"
    if finished.exists():
        record = parse(finished) or {}
        found.state, found.step = "finished", record.get("steps", found.step)
        found.steps, found.left = record.get("steps", found.steps), None
        found.error = "" if measured else last_error(log)
        return found
    found.holder = holder(state)
    if found.holder and found.holder.alive:
        found.state = "running"
        return found
    failed = parse(folder / "failed.json")
    if failed:
        found.state, found.error = "failed", str(failed.get("error", ""))
    elif files.weights(run.name).exists():
        found.state = "trained"
    elif found.step is not None or found.holder:
        found.state = "interrupted"
    found.error = found.error or last_error(log)
    found.error = found.error.removeprefix(f"{run.name}: ")
    return found


def _read_note(path: Path, found: Progress) -> None:
    """Take what the trainer noted last (`training.runlog.note`)."""
    value = parse(path) or {}
    try:
        found.step, found.steps = int(value["step"]), int(value["steps"])
        found.resumes = int(value["resumes"])
        found.age = max(0.0, time.time() - datetime.fromisoformat(value["time"]).timestamp())
    except (KeyError, TypeError, ValueError):
        return
    found.ce, found.norm = value.get("ce"), value.get("norm")
    found.tokens_per_s = value.get("tokens_per_s")
    if isinstance(left := value.get("seconds_left"), int | float):
        found.left = max(0.0, left - found.age)


def last_error(log: Path) -> str:
    """The last message of a job's log that names a fault; none if a later attempt has begun, which
    writes into the same log."""
    try:
        with open(log, "rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - 65536))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return ""
    for line in reversed(lines):
        if ATTEMPT.search(line):
            return ""
        if line.startswith("error: ") or re.match(r"\w+(Error|Exception)\b", line):
            return line.removeprefix("error: ")
    return ""


def _slurm_jobs() -> set[str] | None:
    """Ids of the jobs that Slurm runs now; None where it does not answer."""
    if not shutil.which("squeue"):
        return None
    command = ["squeue", "--noheader", "--states=RUNNING,COMPLETING", "--format=%A"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return set(done.stdout.split())
