"""What Snakemake says of a job, in the words of `durable_jobs`."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from durable_jobs import ClusterError
from durable_jobs.records import Record


def describe(root: Path, job: Any) -> Record:
    """The record of a job by its name (rule and wildcards), what it makes and its parameters."""
    parts, params = ["group", job.jobid], {}
    if not job.is_group():
        parts, plain = [job.rule.name, *job.wildcards], (str, int, float, Path)
        params = {key: str(value) for key, value in job.params.items() if isinstance(value, plain)}
    name = re.sub(r"[^\w.+]+", "-", "-".join(map(str, parts)), flags=re.ASCII)[:150]
    identity = json.dumps([name, sorted(map(str, job.output)), params], sort_keys=True)
    return Record(root / "jobs" / f"{name}.{hashlib.sha256(identity.encode()).hexdigest()[:16]}")


def sbatch_options(
    threads: int, resources: Mapping[str, Any], avoided: Sequence[str] = ()
) -> dict[str, Any]:
    """What to ask Slurm for, in the words of sbatch; resources are named as the official plugin
    names them. `extra` is for its command line as it is; `avoided` are nodes to keep away from."""
    options = {"time": "runtime", "partition": "slurm_partition", "account": "slurm_account"}
    for name in ("qos", "constraint", "gres", "reservation"):
        options[name] = name if resources.get(name) else f"slurm_{name}"
    given = {name: resources[old] for name, old in options.items() if resources.get(old)}
    if resources.get("mem_mb"):
        given["mem"] = f"{resources['mem_mb']}M"
    kind, gpus, model = given.pop("gres", ""), resources.get("gpu"), resources.get("gpu_model")
    nodes = int(resources.get("nodes") or 1)
    if nodes > 1:
        # A task for each GPU, which the job's own srun starts; gpu is their number in all.
        if gpus and gpus % nodes:
            raise ClusterError(f"gpu={gpus} cannot be shared equally by nodes={nodes}")
        gpus = gpus and gpus // nodes
        given |= {"nodes": nodes, "ntasks_per_node": gpus or 1}
    if gpus and kind:
        given["gres"] = kind if kind.rpartition(":")[2].isdigit() else f"{kind}:{gpus}"
    elif gpus:
        given["gpus_per_node"] = f"{model}:{gpus}" if model else gpus
    if avoided:
        given["exclude"] = ",".join(avoided)
    return given | {"cpus_per_task": threads, "extra": resources.get("slurm_extra") or ""}


def local_options(
    threads: int, resources: Mapping[str, Any], avoided: Sequence[str] = ()
) -> dict[str, Any]:
    """What a job gets on a machine without a scheduler: GPUs, and seconds before it is stopped."""
    seconds = 60 * int(resources.get("runtime") or 10**6)
    return {"count": int(resources.get("gpu") or 0), "seconds": seconds}
