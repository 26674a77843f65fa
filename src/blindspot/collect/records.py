"""The records beside results (run.json, measure.json, a timing's .json): each checked to be of
exactly what the study asks for, of today's revisions, and to fit the files it was written for.

No record may lack a key that is checked, and none may have been edited: `check_digests` refuses it
by its seal, after the contents were looked at, since what is wrong there says more.
"""

from collections.abc import Collection
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from blindspot.collect.csvfile import refuse
from blindspot.config.flops import parameters
from blindspot.config.revisions import THROUGHPUT_REVISION
from blindspot.config.spec import RunSpec
from blindspot.config.study import Run, Study
from blindspot.declared import gathered
from blindspot.declared.measurement import RECORD, Measurement
from blindspot.files import read_json, seal, sha256_file

#: What the provenance of a result is gathered as, besides whose it is and of which stage.
PROVENANCE = gathered.PROVENANCE.header[len(gathered.LEAD) + 2 :]

#: Keys that a record of each kind has.
COMMON = ("revision", "files", "provenance", "sha256")
RUN = (*COMMON, "name", "hash", "spec", "steps", "tokens_seen", "parameters", "data")
MEASURE = (*COMMON, "measurement", "run", "hash", "settings")


def read_run(folder: Path, run: Run) -> dict[str, Any]:
    """`folder/run.json`, checked to be the record of exactly this run."""
    path = folder / "run.json"
    record = _read(path, *RUN)
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
    if record["parameters"] != parameters(spec.model):
        raise refuse(
            path,
            f"says parameters {record['parameters']!r}; its model has {parameters(spec.model)}",
        )
    return record


def read_measure(folder: Path, run: Run, study: Study, measurement: Measurement) -> dict[str, Any]:
    """`folder/measure.json`, checked to be of this run and measurement, with the study's
    settings."""
    path = folder / RECORD
    record = _read(path, *MEASURE)
    _of_revision(path, record, f"measurement {measurement.name}", measurement.revision)
    expectations = {
        "measurement": measurement.name,
        "run": run.name,
        "hash": run.spec.hash,
        "settings": measurement.chosen(study.config.measurement),
    }
    for key, expected in expectations.items():
        if record[key] != expected:
            raise refuse(path, f"says {key} {record[key]!r}, expected {expected!r}")
    return record


def same_tokens(path: Path, scored: dict[str, Any], trained: dict[str, Any]) -> None:
    """Refuse a measurement that was made on other token files than its run; records from before
    they said on which are taken as they are."""
    theirs, own = scored.get("tokens_sha256"), trained.get("tokens_sha256")
    if theirs and own and theirs != own:
        raise refuse(path, f"was made on token files {theirs}, its run was trained on {own}")


def read_timing(csv: Path) -> dict[str, Any]:
    """The record beside a throughput table."""
    path = csv.with_suffix(".json")
    if not path.exists():
        raise refuse(csv, f"has no record beside it ({path.name}), so nothing vouches for it")
    record = _read(path, *COMMON)
    _of_revision(path, record, "throughput", THROUGHPUT_REVISION)
    return record


def _read(path: Path, *keys: str) -> dict[str, Any]:
    """A record with these keys."""
    record = read_json(path)
    if not isinstance(record, dict):
        raise refuse(path, "is not a record")
    if absent := [key for key in keys if key not in record]:
        raise refuse(path, f"has no {', '.join(absent)}")
    return record


def _of_revision(path: Path, record: dict[str, Any], kind: str, expected: int) -> None:
    found = record.get("revision")
    if found != expected:
        raise refuse(
            path,
            f"is of {kind} revision {found}, this code makes revision {expected}; results of two "
            f"revisions are not comparable",
        )


def check_digests(path: Path, record: dict[str, Any], files: Collection[str]) -> None:
    """A record pins its files (`files`: name to SHA-256) and itself (`sha256`): the one sure way to
    see an edit. `files` are those that it must pin."""
    if record["sha256"] != seal(record):
        raise refuse(path, "was edited (its sha256 is that of another text)")
    if absent := sorted(set(files) - record["files"].keys()):
        raise refuse(path, f"pins no {', '.join(absent)} (key files)")
    for name, expected in record["files"].items():
        file = path.parent / name
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
