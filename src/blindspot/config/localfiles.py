"""Places on a user's own disk: paths with `~` and variables, and the texts in a folder.

Imports no torch: Snakemake parses this at the start of every job.
"""

import os
import re
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import AfterValidator

from blindspot.errors import BlindspotError

#: Files that are read as a table with a column of texts; any other file is text.
TABLES = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".parquet": "parquet"}
#: Endings that are taken from a folder.
ENDINGS = {*TABLES, ".txt", ".text", ".md"}


def expanded(path: str) -> str:
    """The path that a shell would make of it: `~`, `$NAME` and `${NAME}` stand for what they say.

    Raises `ValueError` where there is no such variable or user: a folder of that name in the
    checkout is never what was meant.
    """
    found = os.path.expanduser(os.path.expandvars(path))  # noqa: PTH111 (a Path loses "a/")
    if unset := re.search(r"\$(?:\w+|\{[^}]*\})", found):
        raise ValueError(f"{unset[0]} is not set here; set it, or write the path out")
    if found.startswith("~"):
        raise ValueError(f"{found.partition('/')[0]} is not a user here; write out the path")
    return found


#: A path in a config.
PathText = Annotated[str, AfterValidator(expanded)]


class Listing(NamedTuple):
    """What a folder of texts holds."""

    #: Its texts, sorted by path.
    files: list[Path]
    #: Hidden folders and texts (their name begins with a dot), which are left out.
    hidden: list[Path]


def listing(folder: Path) -> Listing:
    """The texts below a folder; links are followed.

    Raises `BlindspotError` where a folder cannot be read, a link leads nowhere or back into a
    folder that it is in, and where a file is met twice, because of links.
    """
    found = Listing([], [])
    _enter(folder, (folder.resolve(),), found)
    known: dict[Path, Path] = {}
    for path in sorted(found.files):
        if (other := known.setdefault(path.resolve(), path)) != path:
            raise BlindspotError(
                f"{path} and {other} are one file, so its text would be read twice; take the link "
                f"out of the folder"
            )
    return Listing(sorted(found.files), sorted(found.hidden))


def _enter(folder: Path, above: tuple[Path, ...], found: Listing) -> None:
    try:
        with os.scandir(folder) as entries:
            inside = [(Path(e.path), e.is_dir(), e.is_symlink()) for e in entries]
    except OSError as error:
        raise BlindspotError(f"{folder}: cannot be read ({error.strerror})") from None
    for path, is_folder, is_link in inside:
        wanted = path.suffix.lower() in ENDINGS
        if path.name.startswith("."):
            if is_folder or wanted:
                found.hidden.append(path)
        elif is_folder:
            real = path.resolve()
            if real in above:
                raise BlindspotError(
                    f"{path}: a link to a folder that it is in, {real}; take it out of the folder"
                )
            _enter(path, (*above, real), found)
        elif is_link and not path.exists():
            raise BlindspotError(
                f"{path}: a link to {path.readlink()}, which does not exist; repair it or remove it"
            )
        elif wanted:
            found.files.append(path)
