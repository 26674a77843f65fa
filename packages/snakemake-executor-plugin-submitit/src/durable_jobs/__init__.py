"""Jobs that outlive time limits, preemption, lost nodes and whoever submitted them.

Built on submitit: arrays of Slurm (`slurm`), or processes on the GPUs of one machine (`local`).
`records` is what is known on disk of every job, written before it is submitted; `task` is what runs
on the node. Snakemake is not known here; its executor plugin is one user.
"""

from typing import Protocol


class Settings(Protocol):
    """What a cluster must be told of how its jobs are kept going."""

    #: Seconds between the signal and the end of a job's time.
    signal_delay: int
    max_requeues: int
    #: Seconds between questions to a scheduler, for all jobs together.
    poll_seconds: int
    #: Jobs that may share a GPU, on one machine.
    jobs_per_gpu: int
    #: What jobs find in their environment besides: "NAME=value NAME=value".
    env: str
    #: Jobs that are stopped end as failed, instead of being requeued.
    no_requeue: bool
    #: What the names of jobs begin with in the queue.
    jobname_prefix: str
    #: Where a report of what jobs used is written; jobs look at themselves only if it is.
    efficiency_report: str


#: Why a job has failed that wanted more memory than it had asked for.
OUT_OF_MEMORY = "out of memory; ask for more with mem_mb"


class ClusterError(Exception):
    """What is asked for cannot be submitted here, or now; the message says why."""


class RefusedError(Exception):
    """The scheduler does not take a job; the message is its reason."""
