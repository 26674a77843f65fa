"""Command lines of the workflow's jobs: the study's files and settings, quoted for a shell."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from blindspot.errors import BlindspotError
from blindspot.settings import canonical


def options(**values: Any) -> str:
    """`--key value` for each; values hold no braces to fill in."""
    return shlex.join(word for key, value in values.items() for word in (f"--{key}", str(value)))


def configs(files: Sequence[Path]) -> str:
    """The config files, for verbs that stages run: `--config` each."""
    return shlex.join(word for path in files for word in ("--config", str(path)))


def asked(base: Path, overlays: Sequence[Path], override: Mapping[str, Any]) -> str:
    """The study, for verbs that users type too: `--base`, `--configfile`, `--override`."""
    files = [word for path in overlays for word in ("--configfile", str(path))]
    return shlex.join(["--base", str(base), *files, "--override", canonical(override)])


def snakemake(snakefile: Path, overlays: Sequence[Path], override: Mapping[str, Any]) -> str:
    """The study, for another call of Snakemake; a target must follow behind `--`."""
    words = ["--snakefile", str(snakefile)]
    words += ["--configfile", *map(str, overlays)] if overlays else []
    words += ["--config"] if override else []
    words += [f"{key}={canonical(value)}" for key, value in override.items()]
    return shlex.join(words)


def refuse_second_config(words: Sequence[str]) -> None:
    """Refuse a command line with `--config` in two places: Snakemake takes the last alone."""
    given = [w for w in words if w in ("--config", "-C") or w.startswith("--config=")]
    if len(given) > 1:
        raise BlindspotError(
            "--config is there twice, and Snakemake would take the last alone; give it once, with "
            "all keys behind it: --config KEY=VALUE KEY=VALUE"
        )
