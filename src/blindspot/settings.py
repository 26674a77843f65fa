"""What every setting is: frozen, typed, refused when misspelt, and hashed by its canonical JSON.

Imports no torch: Snakemake parses this at the start of every job.
"""

import hashlib
import json
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

# Strict: 4.0, "4" and true are not counts. A float may be written 3e-4, which YAML reads as text.
Count = Annotated[int, Field(strict=True, ge=1)]
Seed = Annotated[int, Field(strict=True, ge=0, lt=2**63)]
Probability = Annotated[float, Field(ge=0, lt=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
#: Names become folders, job names and labels: no character that a file system, Slurm's percent
#: patterns or LaTeX reads as its own.
Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]{0,39}$")]


def canonical(value: Any) -> str:
    """Canonical JSON: sorted keys, no spaces. Equal settings give equal text, however written."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def digest(value: Any, length: int = 8) -> str:
    """The first `length` hex digits of the SHA-256 of the canonical JSON of `value`."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()[:length]


class Settings(BaseModel):
    """Frozen, and a misspelt key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    def identity(self) -> dict[str, Any]:
        """The JSON value that goes into hashes."""
        return self.model_dump(mode="json")
