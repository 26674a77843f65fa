"""The partition of a job, by limits that a YAML file tells of each.

The file is that of Snakemake's own Slurm plugin:

    partitions:
      short: {max_runtime: 4h, max_mem_mb: 64000}
      gpu: {max_runtime: 2d, max_gpu: 8, available_gpu_models: [a100, h100]}

The first partition in which a job fits is taken; so small ones come first.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from durable_jobs import ClusterError

#: Limit to the resource that it bounds. Without a limit any number fits, but of GPUs none.
_NUMBERS = {
    "max_runtime": "runtime",
    "max_mem_mb": "mem_mb",
    "max_threads": "threads",
    "max_cpus_per_task": "threads",
    "max_nodes": "nodes",
    "max_gpu": "gpu",
}
_CHOICES = {
    "available_gpu_models": ("gpu_model",),
    "available_constraints": ("constraint", "slurm_constraint"),
}
_MINUTES = {"": 1, "m": 1, "h": 60, "d": 24 * 60}
Partitions = dict[str, dict[str, Any]]


def read(path: Path) -> Partitions:
    """Limits by partition; ClusterError names what in the file cannot be used."""
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))["partitions"]
        return {str(name): _limits(limits or {}) for name, limits in found.items()}
    except OSError as error:
        raise ClusterError(f"{path}: {error.strerror}; it is named by partition-config") from None
    except yaml.YAMLError as error:
        raise ClusterError(f"{path}: this is no YAML: {error}") from None
    except (KeyError, TypeError, AttributeError):
        raise ClusterError(f"{path}: `partitions:` with limits by name is missing") from None
    except ValueError as error:
        raise ClusterError(f"{path}: {error}") from None


def _limits(given: Mapping[str, Any]) -> dict[str, Any]:
    limits = dict(given)
    if unknown := sorted(set(limits) - set(_NUMBERS) - set(_CHOICES)):
        raise ValueError(
            f"unknown limit {', '.join(unknown)}; known are {', '.join([*_NUMBERS, *_CHOICES])}"
        )
    if "max_runtime" in limits:
        written = re.fullmatch(r"(\d+)\s*([mhd]?)", str(limits["max_runtime"]))
        if not written:
            raise ValueError(f"max_runtime {limits['max_runtime']!r}; write minutes, 4h or 2d")
        limits["max_runtime"] = int(written[1]) * _MINUTES[written[2]]
    for name in _NUMBERS:
        if not isinstance(limits.get(name, 0), int):
            raise ValueError(f"{name} {limits[name]!r} is no whole number")
    return {"max_gpu": 0} | limits


def choose(partitions: Partitions, threads: int, resources: Mapping[str, Any]) -> str:
    """The first partition in which a job fits; ClusterError says why none does."""
    asked = {**resources, "threads": threads}
    reasons = []
    for name, limits in partitions.items():
        reason = _over(limits, asked)
        if not reason:
            return name
        reasons.append(f"{name} ({reason})")
    raise ClusterError(f"no partition of partition-config takes this job: {', '.join(reasons)}")


def _over(limits: Mapping[str, Any], asked: Mapping[str, Any]) -> str:
    """What is beyond the limits of a partition; "" where nothing is."""
    for limit, resource in _NUMBERS.items():
        if limit in limits and (asked.get(resource) or 0) > limits[limit]:
            return f"{resource}={asked[resource]}, {limit} is {limits[limit]}"
    for limit, names in _CHOICES.items():
        for name in names:
            if limit in limits and asked.get(name) and asked[name] not in limits[limit]:
                return f"{name}={asked[name]}, {limit} is {', '.join(limits[limit])}"
    return ""
