"""Command lines of the workflow's jobs: the study's files and settings, quoted for a shell."""

import os
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
            "--config is given twice, and Snakemake would use only the last; give it once, with "
            "all keys after it: --config KEY=VALUE KEY=VALUE"
        )


def refuse_unwritable(folder: Path) -> None:
    """Refuse to start where Snakemake cannot keep its notes (`.snakemake`), which it does for a dry
    run too: it would end with a traceback before it says anything of the study."""
    places = [folder, *sorted(folder.iterdir())] if _open(folder) else [folder]
    there = [place for place in places if place.is_dir()] or [folder.resolve().parent]
    for place in there:
        if not _open(place):
            raise BlindspotError(
                f"{place.resolve()}: belongs to {_owner(place)}, and you may not write there. "
                f"Snakemake keeps its notes in it, for a dry run too. Use a clone of your own; the "
                f"`results` and `work` of the config may point to the folders here, to read them"
            )


def _open(folder: Path) -> bool:
    return os.access(folder, os.R_OK | os.W_OK | os.X_OK)


def _owner(path: Path) -> str:
    try:
        return path.owner()
    except (KeyError, OSError):
        return f"user {path.stat().st_uid}"
