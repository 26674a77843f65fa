"""What lies on disk: finished runs under results/, states of runs under work/. Only reads.

A record that cannot be read is no reason to stop here: asking must work while files are being
written, and `collect` is where damage is refused. Imports neither torch nor pandas.
"""

import json
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blindspot.config.runfiles import WEIGHTS, checkpoints
from blindspot.config.spec import RunSpec


@dataclass(frozen=True)
class Record:
    """A run.json that was found. `study` is the name of the folder under results/."""

    study: str
    name: str
    path: Path
    value: dict[str, Any]

    @property
    def spec(self) -> dict[str, Any]:
        return dict(self.value["spec"])

    @property
    def hash(self) -> str:
        return str(self.value["hash"])

    @property
    def provenance(self) -> dict[str, Any]:
        found = self.value.get("provenance")
        return found if isinstance(found, dict) else {}


def parse(path: Path) -> dict[str, Any] | None:
    """A JSON object, or None where there is none (yet)."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def finished(results: Path) -> Iterator[Record]:
    """Every run under `results/*/runs/` whose record is readable, in the order of names."""
    for path in sorted(results.glob("*/runs/*/*/*/run.json")):
        value = parse(path)
        if value and isinstance(value.get("spec"), dict) and "hash" in value:
            name = "/".join(path.parent.parts[-3:])
            yield Record(path.parts[-6], name, path, value)


def run_folders(root: Path) -> list[Path]:
    """Folders `{size}/{cell}/seed{n}-{hash}` under `root`, sorted."""
    return sorted(p for p in root.glob("*/*/seed*-*") if p.is_dir())


def name_of(folder: Path) -> str:
    """The run's name, from its folder."""
    return "/".join(folder.parts[-3:])


def saved_spec(state: Path) -> dict[str, Any] | None:
    """The specification that a state folder's weights or newest checkpoint carry, or None.

    It stands in the header of a safetensors file: 8 bytes of length, then JSON.
    """
    for path in [state / WEIGHTS, *checkpoints(state)]:
        try:
            with open(path, "rb") as file:
                (length,) = struct.unpack("<Q", file.read(8))
                header = json.loads(file.read(min(length, 1 << 26)))
            spec = json.loads(header["__metadata__"]["blindspot"])["spec"]
            return RunSpec.model_validate(spec).identity()
        except (OSError, ValueError, KeyError, TypeError, struct.error):
            continue
    return None


def size_of(path: Path) -> int:
    """Bytes of a file or of all files in a folder; what vanishes meanwhile counts nothing."""
    total = 0
    for file in [path, *path.rglob("*")]:
        try:
            if not file.is_symlink() and file.is_file():
                total += file.stat().st_size
        except OSError:
            continue
    return total


def modified(path: Path) -> float:
    """Time of the last change in a folder, seconds since the epoch; what vanishes meanwhile counts
    as changed now."""
    times = []
    for file in [path, *path.rglob("*")]:
        try:
            times.append(file.stat().st_mtime)
        except OSError:
            continue
    return max(times, default=time.time())
