"""What every setting is: frozen, typed, refused when misspelt, and hashed by its canonical JSON.

Imports no torch: Snakemake parses this at the start of every job.
"""

import hashlib
import json
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, ClassVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializationInfo,
    SerializerFunctionWrapHandler,
    model_serializer,
)


def _seed(value: Any) -> Any:
    if isinstance(value, int) and value >= 2**32:
        raise ValueError(
            f"seeds are smaller than 2^32: weights are drawn by a generator that takes 32 bits, so "
            f"this one would give those of seed {value % 2**32}"
        )
    return value


# Strict: 4.0, "4" and true are not counts. All have an upper bound, so that a slip is refused at
# once and does not fill the memory or never end.
Count = Annotated[int, Field(strict=True, ge=1, le=2**53)]
#: Of what is held or gone through whole: widths, layers, loops, sequences, devices.
Extent = Annotated[int, Field(strict=True, ge=1, le=2**20)]
Vocabulary = Annotated[int, Field(strict=True, ge=1, le=2**32)]
Seed = Annotated[int, Field(strict=True, ge=0, lt=2**32), BeforeValidator(_seed)]
Probability = Annotated[float, Field(ge=0, lt=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
#: Names become folders, job names and labels: no character that a file system, Slurm's percent
#: patterns or LaTeX reads as its own.
Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]{0,59}$")]


def canonical(value: Any) -> str:
    """Canonical JSON: sorted keys, no spaces. Equal settings give equal text, however written."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def digest(value: Any, length: int = 8) -> str:
    """The first `length` hex digits of the SHA-256 of the canonical JSON of `value`."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()[:length]


@dataclass(frozen=True)
class Neutral:
    """Marks a setting that an update of the code added: `Annotated[T, Neutral(value)] = value`.

    `value` (as JSON) stands for the behaviour from before the setting existed and never changes.
    Where a setting has it, identities leave the setting out, so that the names of runs and
    measurements of before stay what they were. A test pins these names (tests/test_names.py).
    It is the default too, since identities are read back as settings; what new studies should have
    instead stands in config.yaml.
    """

    value: Any


class Settings(BaseModel):
    """Frozen, and a misspelt key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    #: Settings that say where or how fast, never what: no identity holds them.
    NO_IDENTITY: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        for name, value in _neutral(cls).items():
            default = cls.model_fields[name].get_default(call_default_factory=True)
            if default != value:
                raise TypeError(
                    f"{cls.__name__}.{name}: its neutral value {value!r} is not its default "
                    f"{default!r}"
                )

    def identity(self) -> dict[str, Any]:
        """The JSON value that goes into hashes: every setting that decides a result, but those that
        are neutral, here and in the settings that this one holds."""
        return self.model_dump(mode="json", context={"identity": True})

    @model_serializer(mode="wrap")
    def _serialized(
        self, handler: SerializerFunctionWrapHandler, info: SerializationInfo
    ) -> dict[str, Any]:
        values: dict[str, Any] = handler(self)
        if not (info.context or {}).get("identity"):
            return values
        neutral = _neutral(type(self))
        return {
            name: value
            for name, value in values.items()
            if name not in self.NO_IDENTITY and (name not in neutral or value != neutral[name])
        }


@cache
def _neutral(kind: type[Settings]) -> dict[str, Any]:
    """The neutral values of the settings of a class."""
    return {
        name: mark.value
        for name, field in kind.model_fields.items()
        for mark in field.metadata
        if isinstance(mark, Neutral)
    }
