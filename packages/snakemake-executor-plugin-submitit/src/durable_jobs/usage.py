"""What a job uses of what it asked for: looked at on the node, gathered by the controller.

No accounting is asked: a job looks at itself. Memory is the sum over its processes, every 5 s; GPUs
are asked of nvidia-smi, every 30 s; CPU time is the kernel's. A node's other jobs do not count.
"""

import csv
import json
import os
import resource
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

#: Seconds between looks at memory, and at GPUs.
MEMORY_EVERY, GPU_EVERY = 5.0, 30.0
COLUMNS = (
    "job",
    "attempts",
    "seconds",
    "mem_mb_asked",
    "mem_mb_used",
    "minutes_asked",
    "minutes_longest",
    "cpus_asked",
    "cpus_used",
    "gpu_asked",
    "gpu_percent",
)


def memory(session: int) -> int:
    """Bytes in memory of all processes of a session."""
    total = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError, IndexError):
            # Behind the name, which may hold spaces: session is the 6th field, resident pages 24th.
            fields = path.read_text().rpartition(")")[2].split()
            if int(fields[3]) == session:
                total += int(fields[21]) * os.sysconf("SC_PAGE_SIZE")
    return total


def gpus(ids: str) -> list[float]:
    """How busy each of these GPUs is, in percent; none where nvidia-smi does not tell."""
    command = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(
            [*command, f"--id={ids}"], capture_output=True, text=True, timeout=10, check=True
        )
        return [float(line) for line in done.stdout.split()]
    except (OSError, ValueError, subprocess.SubprocessError):
        return []


class Meter:
    """Looks at one attempt of a job, while it runs."""

    def __init__(self, session: int, environ: dict[str, str]) -> None:
        self.session, self.gpus = session, environ.get("CUDA_VISIBLE_DEVICES", "")
        self.start = time.monotonic()
        self.memory, self.busy = 0, list[float]()
        self._memory_at = self._gpu_at = 0.0

    def look(self) -> None:
        """To be called about once a second."""
        now = time.monotonic()
        if now >= self._memory_at:
            self._memory_at = now + MEMORY_EVERY
            self.memory = max(self.memory, memory(self.session))
        if self.gpus and now >= self._gpu_at:
            self._gpu_at = now + GPU_EVERY
            if found := gpus(self.gpus):
                self.busy.append(mean(found))

    def save(self, path: Path) -> None:
        """Add this attempt, whose processes have all ended, to what earlier ones have left."""
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds = time.monotonic() - self.start
        old = read(path)
        largest = max(self.memory, children.ru_maxrss * 1024) / 2**20
        new = {
            "attempts": old.get("attempts", 0) + 1,
            "seconds": old.get("seconds", 0.0) + seconds,
            "longest": max(old.get("longest", 0.0), seconds),
            "cpu_seconds": old.get("cpu_seconds", 0.0) + children.ru_utime + children.ru_stime,
            "memory_mb": max(old.get("memory_mb", 0.0), largest),
            "busy": [*old.get("busy", []), *self.busy],
        }
        with suppress(OSError):  # a full disk must not fail a job that has done its work
            temporary = path.with_suffix(".tmp")
            temporary.write_text(json.dumps(new))
            temporary.replace(path)


def read(path: Path) -> dict[str, Any]:
    """What a job's attempts have left; nothing where none has."""
    with suppress(OSError, ValueError):
        return dict(json.loads(path.read_text()))
    return {}


@dataclass
class Job:
    """A job that has ended: what it asked for, and what was seen of it."""

    name: str
    #: Resources, in Snakemake's words.
    asked: Mapping[str, Any]
    threads: int
    used: dict[str, Any]

    @property
    def rule(self) -> str:
        return self.name.partition("-")[0]

    def number(self, resource: str) -> float:
        """What was asked of a resource; 0 where nothing was."""
        return float(self.asked.get(resource) or 0)

    def row(self) -> list[Any]:
        """One row of the report; empty where nothing was asked, or seen."""
        u = self.used
        return [
            self.name,
            u["attempts"],
            round(u["seconds"]),
            self.asked.get("mem_mb") or "",
            round(u["memory_mb"]),
            self.asked.get("runtime") or "",
            round(u["longest"] / 60, 1),
            self.threads,
            round(u["cpu_seconds"] / max(u["seconds"], 0.1), 2),
            int(self.number("gpu")),
            round(mean(u["busy"])) if u["busy"] else "",
        ]


def report(jobs: Sequence[Job], path: Path) -> list[str]:
    """Write one row a job to `path`; a line for each rule says how much of it was used."""
    seen = [job for job in jobs if job.used]
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(job.row() for job in seen)
    lines = []
    for rule in dict.fromkeys(job.rule for job in seen):
        own = [job for job in seen if job.rule == rule]
        memory = [j.used["memory_mb"] / m for j in own if (m := j.number("mem_mb"))]
        longest = [j.used["longest"] / 60 / m for j in own if (m := j.number("runtime"))]
        cpus = [j.used["cpu_seconds"] / max(j.used["seconds"], 0.1) / j.threads for j in own]
        busy = [mean(j.used["busy"]) for j in own if j.used["busy"]]
        parts = [f"memory {max(memory):.0%} at most"] if memory else []
        parts += [f"time {max(longest):.0%} at most"] if longest else []
        parts.append(f"CPUs {mean(cpus):.0%}")
        parts += [f"GPUs {mean(busy):.0f}%"] if busy else []
        lines.append(f"{rule} ({len(own)} jobs) used of what it asked for: {', '.join(parts)}")
    return lines
