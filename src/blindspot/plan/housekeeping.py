"""`blindspot ls`, `blindspot diff` and `blindspot gc`: what lies on disk, and who still needs it.

Runs, token files and corpora are named by their content, so a folder is used exactly if some
study's config asks for that name. All studies of the checkout count: config.yaml, each file of
`studies/` over it, and the study at hand. Imports neither torch nor pandas.
"""

import shutil
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.table import Table

from blindspot import declared
from blindspot.config.runfiles import WEIGHTS, checkpoints
from blindspot.config.study import Study
from blindspot.declared.measurement import RECORD
from blindspot.errors import BlindspotError, LockedError
from blindspot.files import leftovers
from blindspot.plan import inventory, show
from blindspot.plan.diff import differences, text
from blindspot.plan.progress import holder
from blindspot.plan.show import bytes_of, duration
from blindspot.training.lock import exclusive

#: Folders of work/ that hold data; each of theirs is named by its content.
DATA = ("tokens", "tokenizers", "corpora")
#: What a process leaves that is killed while it writes a file, and seconds that writing may take.
HALF, WRITING = "half-written files", 3600


@dataclass
class Users:
    """Studies that count as users of what lies on disk, and study files that can't be read."""

    studies: list[Study]
    broken: dict[str, str] = field(default_factory=dict)

    def of_run(self, name: str) -> list[str]:
        """Names of the studies that ask for a run."""
        return self._with(name, lambda s: {run.name for run in s.runs})

    def of_folder(self, path: Path) -> list[str]:
        """Names of the studies whose corpus, tokenizer or tokens that folder is."""
        return self._with(path.name, lambda s: {s.corpus.name, s.tokens.name, *_tokenizer(s)})

    def _with(self, name: str, names: Any) -> list[str]:
        return list(dict.fromkeys(s.config.study for s in self.studies if name in names(s)))


def _tokenizer(study: Study) -> list[str]:
    return [study.tokenizer.parent.name] if study.tokenizer else []


def users(study: Study, base: Path, more: Iterable[Sequence[Path]] = ()) -> Users:
    """The study at hand, `base`, each file of `studies/` beside it over `base`, and each of `more`
    (files to be laid over `base` together).

    A file that says nothing whole by itself counts over every other one that it can lie on.
    """
    found = Users([study])
    whole: list[Path] = []
    beside = sorted((base.parent / "studies").glob("*.yaml"))
    for path in [base, *beside]:
        try:
            found.studies.append(Study.load(base, [path]))
            whole.append(path)
        except BlindspotError as error:
            found.broken[str(path)] = str(error)
    for path in [p for p in beside if str(p) in found.broken]:
        for under in whole:
            try:
                found.studies.append(Study.load(base, [under, path]))
                found.broken.pop(str(path), None)
            except BlindspotError:
                continue
    # What the user names must be readable.
    found.studies += [Study.load(base, files) for files in more]
    return found


# --- ls ------------------------------------------------------------------------------------------


def listing(study: Study, known: Users) -> Table:
    """Every run under the study's results root and work folder."""
    names = ("Run", "Where", "Age", "Size", "State", "Used by")
    shown = show.table(names, numbers=("Age", "Size"), texts=("Used by",))
    total = 0
    for folder in folders(study):
        name, size = inventory.name_of(folder), inventory.size_of(folder)
        total += size
        age = duration(time.time() - inventory.modified(folder))
        where = str(folder).removesuffix(f"/{name}")
        shown.add_row(name, where, age, bytes_of(size), what(folder), used(known, name))
    shown.add_section()
    shown.add_row("all together", "", "", bytes_of(total), "", "")
    return shown


def folders(study: Study) -> list[Path]:
    """Folders of runs: results of every study under the same root, then states."""
    roots = sorted(Path(study.config.results).glob("*/runs"))
    return [f for root in [*roots, study.work / "runs"] for f in inventory.run_folders(root)]


def what(folder: Path) -> str:
    """What a run's folder holds, in a word or two."""
    if (folder / "run.json").exists():
        if inventory.parse(folder / "run.json") is None:
            return "damaged run.json"
        n = len(list(folder.glob(f"measure/*/{RECORD}")))
        return f"finished, {n} measurement{'s' if n != 1 else ''}"
    if (folder / "failed.json").exists():
        return "failed"
    held = holder(folder)
    if held and held.alive is not False:
        return f"held by {held}"
    if (folder / WEIGHTS).exists():
        return "weights"
    return "checkpoint" if checkpoints(folder) else "no weights"


def used(known: Users, name: str) -> str:
    """Names of the studies that ask for a run, or what else is known."""
    names = known.of_run(name)
    if names:
        return ", ".join(names)
    return "unknown (a study file can't be read)" if known.broken else "not used"


# --- diff ----------------------------------------------------------------------------------------


def find(study: Study, asked: str) -> tuple[str, dict[str, Any]]:
    """Name and specification of the one run that `asked` means.

    `asked` is a hash, a name, or the beginning of either, of a run that the config plans or that
    lies on disk. Raises `BlindspotError` when it means none or several.
    """
    specs: dict[str, tuple[str, dict[str, Any]]] = {}
    for name, key, spec in _candidates(study):
        if _means(asked, name):
            specs.setdefault(key, (name, spec))
    if len(specs) == 1:
        return next(iter(specs.values()))
    if not specs:
        raise BlindspotError(
            f"{asked}: no run of that name or hash, neither in the config nor under "
            f"{study.config.results} or {study.work}; `blindspot ls` lists what is there"
        )
    names = [name for name, _ in specs.values()]
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    raise BlindspotError(
        f"{asked}: means {len(names)} runs ({', '.join(names[:8])}{more}); give more of the name, "
        f"or the hash at its end"
    )


def _candidates(study: Study) -> Iterable[tuple[str, str, dict[str, Any]]]:
    """(name, hash, specification) of every run that is known."""
    for run in study.runs:
        yield run.name, run.spec.hash, run.spec.identity()
    for record in inventory.finished(Path(study.config.results)):
        yield record.name, record.hash, record.spec
    for state in inventory.run_folders(study.work / "runs"):
        if (spec := inventory.saved_spec(state)) is not None:
            name = inventory.name_of(state)
            yield name, name.rpartition("-")[2], spec


def _means(asked: str, name: str) -> bool:
    asked = asked.rstrip("/")
    # As a shell completes it, or as `ls` shows it: results/demo/runs/0.1m/...
    return name.startswith(asked) or asked.endswith(name) or _hash(name).startswith(asked)


def _hash(name: str) -> str:
    return name.rpartition("-")[2]


def compare(study: Study, one: str, other: str) -> Table | str:
    """The keys in which two runs differ, each with both values."""
    (first, a), (second, b) = find(study, one), find(study, other)
    found = differences(a, b)
    if not found:
        return f"{first} and {second} have the same specification."
    names = ("Key", first, second)
    shown = show.table(names, texts=names)
    for key, (old, new) in found.items():
        shown.add_row(key, text(old), text(new))
    return shown


# --- gc ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Piece:
    """Something on disk that no study asks for."""

    kind: str
    path: Path
    bytes: int
    #: Why it stays all the same; empty where it may go.
    kept: str = ""


def unused(study: Study, known: Users, results: bool) -> list[Piece]:
    """What no study uses: under work/, and with `results` in the study's results folder too."""
    found = []
    for state in inventory.run_folders(study.work / "runs"):
        held = holder(state)
        kept = f"held by {held}" if held and held.alive is not False else ""
        if not known.of_run(inventory.name_of(state)):
            found.append(Piece("states of runs", state, inventory.size_of(state), kept))
        elif not kept:
            # Hidden, and as large as a checkpoint.
            found += [Piece(HALF, path, inventory.size_of(path)) for path in leftovers(state)]
    for kind in DATA:
        for folder in sorted((study.work / kind).glob("*")):
            if folder.is_dir() and not known.of_folder(folder):
                found.append(Piece(kind, folder, inventory.size_of(folder)))
    if results:
        found += [Piece(k, p, inventory.size_of(p)) for k, p in _unused_results(study, known)]
    return found


def _unused_results(study: Study, known: Users) -> list[tuple[str, Path]]:
    """Runs, measurements and timings in the study's results folder that nobody asks for."""
    found: list[tuple[str, Path]] = []
    # Users of this folder are studies of the same name: their measurements and timings count.
    own = [s for s in known.studies if s.results == study.results]
    measures = set()
    for s in own:
        folders = declared.folders(s.config.measurement)
        measures |= {*folders.values(), declared.complete(folders)}
    timed = {f"{size}-{s.throughput_hash(size)}" for s in own for size in s.config.sizes}
    names = {run.name for s in own for run in s.runs}
    for folder in inventory.run_folders(study.results / "runs"):
        if inventory.name_of(folder) not in names:
            found.append(("results of runs", folder))
            continue
        # `measure-*`: of before each measurement had a folder of its own, and not taken up.
        old = [*folder.glob("measure-*"), *(folder / "measure").glob("[!.]*")]
        old = sorted(p for p in old if p.name not in measures)
        found += [("measurements with other settings", path) for path in old]
        kept = [folder, *(p for p in folder.glob("measure-*") if p not in old)]
        half = [path for place in kept for path in leftovers(place)]
        # No lock says who writes results now.
        found += [(HALF, p) for p in half if time.time() - inventory.modified(p) > WRITING]
    for path in sorted((study.results / "throughput").glob("*.csv")):
        if path.stem not in timed:
            record = path.with_suffix(".json")
            found += [("timings", p) for p in (path, record) if p.exists()]
    return found


def collect_garbage(study: Study, known: Users, results: bool, delete: bool) -> Table:
    """List what is unused, or delete it; the table has the bytes of each class and path."""
    if delete and known.broken:
        listed = "; ".join(f"{path} ({why})" for path, why in known.broken.items())
        raise BlindspotError(
            f"nothing was deleted: it is not known what these study files use: {listed}; repair "
            f"them, or move them out of studies/"
        )
    done = "Deleted" if delete else "Would be deleted"
    shown = show.table(("What", "Size", "Path", done), ("Size",), ("Path", done))
    pieces = unused(study, known, results)
    gone: dict[str, int] = {}
    for piece in pieces:
        kept = piece.kept or (_delete(piece) if delete else "")
        if not kept:
            gone[piece.kind] = gone.get(piece.kind, 0) + piece.bytes
        shown.add_row(
            piece.kind, bytes_of(piece.bytes), str(piece.path), f"no: {kept}" if kept else "yes"
        )
    shown.add_section()
    for kind, total in gone.items():
        shown.add_row(f"all {kind}", bytes_of(total), "", "")
    shown.add_row("all together", bytes_of(sum(gone.values())), "", "")
    return shown


def _delete(piece: Piece) -> str:
    """Delete a piece; why not, where it could not be."""
    try:
        if piece.kind == "states of runs":
            # A trainer that starts now is told that its folder is in use.
            with exclusive(piece.path):
                shutil.rmtree(piece.path)
        elif piece.path.is_dir():
            shutil.rmtree(piece.path)
        else:
            piece.path.unlink()
    except LockedError:
        return "a process holds its lock"
    except OSError as error:
        return str(error)
    # Folders of a size or cell that hold nothing more.
    for folder in list(piece.path.parents)[:2]:
        if folder.name not in ("runs", *DATA, "throughput") and not any(folder.iterdir()):
            folder.rmdir()
        else:
            break
    return ""
