"""What to train and where to, and how far a training is."""

from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Self

from blindspot import provenance
from blindspot.config.execution import Execution
from blindspot.config.spec import RunSpec


@dataclass
class Job:
    """What to train, from what, and where to."""

    name: str
    spec: RunSpec
    tokens: Path
    #: Result folder: run.json, trajectory.csv, timing.csv.
    out: Path
    #: State folder: checkpoints, weights, TensorBoard events, lock.
    state: Path
    device: str = "auto"
    threads: int = 1
    execution: Execution = field(default_factory=Execution)
    #: Where an experiment tracker keeps what it is told.
    tracking: Path = Path("tracking")
    #: Who started this process as one of several (`parallel.join`): none, env or slurm.
    ranks: str = "none"


@dataclass
class Progress:
    """All that changes while a run trains, beside the tensors."""

    step: int = 0
    #: Seconds of training over all attempts, without those of compiling.
    seconds: float = 0.0
    compile_seconds: float = 0.0
    #: Whether the step is compiled: the same in all attempts. None in a checkpoint from before this
    #: was recorded.
    compiled: bool | None = None
    #: When training began, and how often it was taken up again.
    started: str = field(default_factory=provenance.now)
    resumes: int = 0
    #: Why it began at step 0 although there had been an earlier attempt.
    started_over: str | None = None
    rows: list[list[Any]] = field(default_factory=list)
    timing: list[list[Any]] = field(default_factory=list)
    #: Steps (from 0) that were left out because they were not finite.
    skipped: list[int] = field(default_factory=list)
    #: Bytes that the last attempt needed at most.
    peak_memory: int | None = None
    #: What the last attempt ran on (`outcome.where`).
    where: dict[str, Any] = field(default_factory=dict)

    def meta(self, spec: RunSpec, tokens: str) -> dict[str, Any]:
        """What is saved beside the tensors; `tokens` is the digest of the token files."""
        return {"run": spec.hash, "spec": spec.identity(), "tokens": tokens} | asdict(self)

    @classmethod
    def of(cls, meta: dict[str, Any]) -> Self:
        """From `meta`; what an older checkpoint lacks has its default."""
        return cls(**{f.name: meta[f.name] for f in fields(cls) if f.name in meta})
