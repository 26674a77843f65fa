"""What a measurement is to everyone but the code that computes it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from blindspot.declared.columns import File
from blindspot.settings import Settings, digest

#: The record beside a measurement's files, written after them.
RECORD = "measure.json"


@dataclass(frozen=True)
class Sample:
    """The tokens that a measurement reads, as captions say it: windows spread over a split."""

    what: str
    #: The setting that says how many.
    budget: str
    split: str = "validation"


@dataclass(frozen=True)
class Measurement:
    """One measurement of a run's weights. `blindspot.measure.<name>` computes it; its results lie
    in a folder of their own, named by all that decides them."""

    name: str
    title: str
    files: tuple[File, ...]
    #: Raise it when results change: this measurement is then made anew, and no other.
    revision: int
    #: Keys of `measurement:` in the config that it reads, and no others.
    settings: tuple[str, ...] = ()
    sample: Sample | None = None

    def chosen(self, settings: Settings) -> dict[str, Any]:
        """Of the study's settings, those that decide this measurement."""
        return self.of(settings.identity())

    def of(self, identity: Mapping[str, Any]) -> dict[str, Any]:
        """The same from an identity. A neutral setting is in neither."""
        return {key: identity[key] for key in self.settings if key in identity}

    def folder(self, settings: Settings) -> str:
        """`<name>-<hash8>`."""
        return self.folder_of(self.chosen(settings))

    def folder_of(self, chosen: Mapping[str, Any]) -> str:
        """`<name>-<hash8>` of settings as `chosen` gives them."""
        value = {"revision": self.revision, "settings": dict(chosen)}
        return f"{self.name}-{digest(value)}"
