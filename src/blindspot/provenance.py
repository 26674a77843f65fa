"""Where a result comes from: code, versions, machine. Never part of a hash."""

import os
import platform
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("blindspot", "torch", "numpy", "tokenizers", "datasets", "safetensors", "snakemake")


def now() -> str:
    """UTC time to the second, ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def collect() -> dict[str, Any]:
    """Commit, package versions, platform, and the command that ran."""
    return {
        **_commit(),
        "versions": {"python": platform.python_version(), **_versions()},
        "platform": f"{platform.system()} {platform.machine()}",
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:2]]),
        "slurm_job": os.environ.get("SLURM_JOB_ID"),
    }


def has_gpu() -> bool:
    """Whether this machine shows a GPU; asks the device files, so torch is not needed."""
    return any(Path(p).exists() for p in ("/dev/nvidia0", "/dev/nvidiactl", "/dev/kfd"))


def device_name(device: Any) -> str:
    """The model name of a torch device: of the GPU, or of the processor."""
    import torch

    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_name(device)
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


def _commit() -> dict[str, Any]:
    """Commit of the checkout that the code lies in; null where there is none."""
    here = Path(__file__).parent

    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", "-C", str(here), *arguments], capture_output=True, text=True, timeout=20
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    status = git("status", "--porcelain", "--untracked-files=no")
    return {
        "commit": git("rev-parse", "HEAD"),
        "dirty": None if status is None else bool(status),
    }
