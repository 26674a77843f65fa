"""The records beside results (run.json, measure.json, a timing's .json): each checked to be of
exactly what the study asks for, of today's revisions, and to fit the files it was written for.
"""

from pathlib import Path
from typing import Any

from pydantic import ValidationError

from blindspot.collected import refuse
from blindspot.files import read_json, sha256_file
from blindspot.revisions import MEASUREMENT_REVISION, THROUGHPUT_REVISION
from blindspot.spec import RunSpec
from blindspot.study import Run, Study

#: What the provenance of a result is gathered as, besides size, cell, seed, run and stage.
PROVENANCE = (
    "revision",
    "data_revision",
    "commit",
    "dirty",
    "device",
    "threads",
    "precision",
    "blindspot",
    "python",
    "torch",
    "numpy",
    "started",
    "finished",
    "process_seconds",
    "resumes",
    "requeues",
    "command",
)


def read_run(folder: Path, run: Run) -> dict[str, Any]:
    """`folder/run.json`, checked to be the record of exactly this run."""
    path = folder / "run.json"
    record = read_json(path)
    keys = ("name", "hash", "revision", "spec", "steps", "tokens_seen", "parameters", "provenance")
    absent = [key for key in keys if not isinstance(record, dict) or key not in record]
    if absent:
        raise refuse(path, f"has no {', '.join(absent)}")
    try:
        spec = RunSpec.model_validate(record["spec"])
    except ValidationError as error:
        raise refuse(path, f"holds no run specification ({error.error_count()} faults)") from None
    _of_revision(path, {"revision": spec.revision}, "training", run.spec.revision)
    _of_revision(path, record, "training", run.spec.revision)
    _of_revision(path, spec.data, "data", run.spec.data["revision"])
    if spec.hash != run.spec.hash or record["hash"] != run.spec.hash:
        raise refuse(path, f"describes run {spec.hash}, not {run.spec.hash}")
    if record["name"] != run.name:
        raise refuse(path, f"names itself {record['name']!r}, not {run.name!r}")
    steps = record["steps"]
    if not isinstance(steps, int) or steps < 1 or spec.training.steps not in (None, steps):
        raise refuse(path, f"says steps {steps!r}, the run has {spec.training.steps}")
    if record["tokens_seen"] != steps * spec.batch * spec.windows.length:
        raise refuse(
            path,
            f"says tokens_seen {record['tokens_seen']!r}; {steps} steps of {spec.batch} x "
            f"{spec.windows.length} tokens are {steps * spec.batch * spec.windows.length}",
        )
    check_digests(folder, path, record)
    return dict(record)


def read_measure(folder: Path, run: Run, study: Study) -> dict[str, Any]:
    """`folder/measure.json`, checked to be a measurement of this run with the study's settings."""
    path = folder / "measure.json"
    record = read_json(path)
    if not isinstance(record, dict):
        raise refuse(path, "is not a record")
    _of_revision(path, record, "measurement", MEASUREMENT_REVISION)
    expectations = {
        "run": run.name,
        "hash": run.spec.hash,
        "settings": study.config.measurement.identity(),
    }
    for key, expected in expectations.items():
        if record.get(key, expected) != expected:
            raise refuse(path, f"says {key} {record[key]!r}, expected {expected!r}")
    check_digests(folder, path, record)
    return record


def read_timing(csv: Path) -> dict[str, Any]:
    """The record beside a throughput table."""
    path = csv.with_suffix(".json")
    if not path.exists():
        raise refuse(csv, f"has no record beside it ({path.name}), so nothing vouches for it")
    record = read_json(path)
    if not isinstance(record, dict):
        raise refuse(path, "is not a record")
    _of_revision(path, record, "throughput", THROUGHPUT_REVISION)
    check_digests(csv.parent, path, record)
    return record


def _of_revision(path: Path, record: dict[str, Any], kind: str, expected: int) -> None:
    found = record.get("revision")
    if found != expected:
        raise refuse(
            path,
            f"is of {kind} revision {found}, this code makes revision {expected}; results of two "
            f"revisions are not comparable",
        )


def check_digests(folder: Path, path: Path, record: dict[str, Any]) -> None:
    """A record may pin its files (`files`: name to SHA-256): the one sure way to see an edit."""
    for name, expected in record.get("files", {}).items():
        file = folder / name
        if not file.is_file():
            raise refuse(file, f"missing, though {path.name} lists it")
        if sha256_file(file) != expected:
            raise refuse(file, f"is not the file that {path.name} was written for (SHA-256)")


def provenance(record: dict[str, Any], data_revision: int | None) -> dict[str, Any]:
    """The columns `PROVENANCE` of a record; None where an older record does not say."""
    found = record.get("provenance") or {}
    values = {"revision": record["revision"], "data_revision": data_revision}
    values |= found | found.get("versions", {})
    return {name: values.get(name) for name in PROVENANCE}
