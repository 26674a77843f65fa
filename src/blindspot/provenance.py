"""Where a result comes from: code, versions, machine. Never part of a hash."""

import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("blindspot", "torch", "numpy", "tokenizers", "datasets", "safetensors", "snakemake")


def now() -> str:
    """UTC time to the second, ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def collect() -> dict[str, Any]:
    """Commit, package versions, platform, the command that ran and for how long it did, and how
    often its job was requeued."""
    return {
        **_commit(),
        "versions": {"python": platform.python_version(), **_versions()},
        "platform": f"{platform.system()} {platform.machine()}",
        "command": command(sys.argv),
        "process_seconds": process_seconds(),
        "slurm_job": os.environ.get("SLURM_JOB_ID"),
        "requeues": requeues(),
    }


def command(argv: Sequence[str]) -> str:
    """The command line; specifications are left out, because a record has them in full."""
    words = [Path(argv[0]).name, *argv[1:]]
    for at, word in enumerate(words[:-1]):
        if word in ("--spec", "--settings"):
            words[at + 1] = "SPEC" if word == "--spec" else "SETTINGS"
    return shlex.join(words)


def requeues() -> int:
    """How often the job of this process was started before, by Slurm or a local queue."""
    given = os.environ.get("SLURM_RESTART_COUNT") or os.environ.get("SUBMITIT_RESTARTS") or "0"
    return int(given) if given.isdigit() else 0


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def process_seconds() -> float | None:
    """Seconds since this process began, imports included; None where the system does not tell."""
    try:
        stat = Path("/proc/self/stat").read_text(encoding="ascii")
        # Fields are counted from behind the name, which may hold spaces; the 22nd is the start.
        ticks = int(stat.rpartition(")")[2].split()[19])
        return round(time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK"), 2)
    except (OSError, ValueError, AttributeError):
        return None


def has_gpu() -> bool:
    """Whether this machine shows a GPU to this process; asks the device files, so torch is not
    needed. CUDA_VISIBLE_DEVICES may hide all of NVIDIA's, if it is empty or begins with -1."""
    hides = os.environ.get("CUDA_VISIBLE_DEVICES", "all").strip()
    nvidia = () if not hides or hides.startswith("-") else ("/dev/nvidia0", "/dev/nvidiactl")
    return any(Path(p).exists() for p in (*nvidia, "/dev/kfd"))


def kind(device: str) -> str:
    """`cpu` or `cuda`: what a study's `device` is on this machine."""
    return ("cuda" if has_gpu() else "cpu") if device == "auto" else device


def has_bf16() -> bool | None:
    """Whether this processor multiplies in bfloat16; elsewhere torch emulates it, many times as
    slowly as float32. None where the system does not tell."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return None
    for line in text.splitlines():
        name, _, flags = line.partition(":")
        if name.strip() in ("flags", "Features"):  # of x86, of ARM
            return not {"avx512_bf16", "amx_bf16", "bf16"}.isdisjoint(flags.split())
    return None


def device_name(device: Any) -> str:
    """The model name of a torch device: of the GPU, or of the processor."""
    import torch

    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_name(device)
    return processor()


def processor() -> str:
    """The model name of the processor."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _commit(here: Path = Path(__file__).parent) -> dict[str, Any]:
    """Commit of the repository that has the code in `here` under version control, and whether that
    code, or anything else under version control, was changed since; null where there is none.

    A repository around the code (an archive unpacked in it, an environment in it) is not that of
    the code. Nothing is written, no lock taken: others may commit at the same time.
    """
    # What git itself set for a hook or an alias, or a user for another repository.
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}

    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", "--no-optional-locks", "-C", str(here), *arguments],
                capture_output=True,
                text=True,
                timeout=20,
                env=environment,
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    if not git("ls-tree", "HEAD", "--", Path(__file__).name):
        return {"commit": None, "dirty": None}
    changed = git("status", "--porcelain", "--untracked-files=no")
    # A new module runs as any other; new files elsewhere (results, notes) do not.
    new = git("status", "--porcelain", "--untracked-files=all", "--", str(here.parent))
    return {
        "commit": git("rev-parse", "HEAD"),
        "dirty": None if changed is None or new is None else bool(changed or new),
    }
