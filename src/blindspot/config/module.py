"""A study that another workflow hands over, which uses this one as a module (docs/sharing.md)."""

from collections.abc import Mapping
from typing import Any

from blindspot.config.overlays import merge
from blindspot.errors import BlindspotError


def from_module(config: Mapping[str, Any], typed: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that a workflow hands over which uses this one as a module. Snakemake has read
    them, and takes numbers within a `--config` for text: those are laid over them as `typed`.

    Raises `BlindspotError` for keys that YAML 1.1 takes for something else than text (`no:`).
    """
    _refuse_other_keys(config, "config")
    return merge(config, {key: value for key, value in typed.items() if key in config})


def _refuse_other_keys(config: Mapping[Any, Any], where: str) -> None:
    for key, value in config.items():
        if not isinstance(key, str):
            raise BlindspotError(
                f"{where}: key {key!r} is not text to Snakemake, which reads this file as YAML "
                f"1.1; write it in quotes, in the config of the workflow that uses blindspot as a "
                f"module"
            )
        if isinstance(value, Mapping):
            _refuse_other_keys(value, f"{where}.{key}")
