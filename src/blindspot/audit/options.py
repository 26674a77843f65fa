"""What the command line of the audit says."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Options:
    """What the command line says beside the model's name."""

    text: Path | None = None
    tokenizer: Path | None = None
    results: Path = Path("results")
    work: Path = Path("work")
    device: str = "auto"
    dtype: str = "auto"
    loops: int | None = None
    trust_remote_code: bool = False
