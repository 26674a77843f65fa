"""Measurements of before, when a run had one folder `measure-<hash8>/` for all of them.

They are the same numbers: each measurement gets a folder of its own, with its files as they are
and a record that pins them by the digests of before. Weights are not needed. The workflow and
`blindspot collect` do this by themselves, and it does nothing where there is nothing of before.
"""

import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from blindspot import declared
from blindspot.config.runfiles import RunFiles
from blindspot.config.study import Study
from blindspot.declared.measurement import RECORD, Measurement
from blindspot.errors import BlindspotError
from blindspot.files import read_json, seal, write_record

#: The last revision that all measurements shared.
SHARED_REVISION = 4


def migrate(study: Study) -> int:
    """Take up what was measured before, of all runs of a study; how many folders that were."""
    files, taken = RunFiles(study), 0
    for run in study.runs:
        old = list(files.measurements(run.name).parent.glob("measure-*/measure.json"))
        if not old:
            continue
        taken += sum(_take_up(path.parent, files.measurements(run.name)) for path in sorted(old))
        done = files.measured(run.name)
        if not files.unmeasured(run.name) and not done.exists():
            folders = sorted(declared.folders(study.config.measurement).values())
            write_record(done, {"run": run.name, "hash": run.spec.hash, "folders": folders})
    return taken


def retract(study: Study) -> None:
    """Remove the file that says that a run is measured where one of its measurements is not there
    any more: the workflow then sees what is to be made."""
    files = RunFiles(study)
    for run in study.runs:
        if files.measured(run.name).exists() and files.unmeasured(run.name):
            files.measured(run.name).unlink(missing_ok=True)


def _take_up(old: Path, out: Path) -> bool:
    """Whether the folder `old` was of this form and is now in `out`. What cannot be read, was
    edited or is of an older revision is left where it is, and is no measurement."""
    try:
        record = read_json(old / RECORD)
        if record["revision"] != SHARED_REVISION or record["sha256"] != seal(record):
            return False
        for measurement in declared.MEASUREMENTS.values():
            if measurement.revision == SHARED_REVISION:
                _split(old, out, record, measurement)
    except (BlindspotError, KeyError, TypeError, OSError):
        return False  # or another process takes it up at this moment
    shutil.rmtree(old, ignore_errors=True)
    return True


def _split(old: Path, out: Path, record: Mapping[str, Any], measurement: Measurement) -> None:
    """One measurement of the folder `old` in its own folder, which appears as a whole."""
    chosen = measurement.of(record["settings"])
    to = out / measurement.folder_of(chosen)
    files = {file.csv: record["files"].get(file.csv) for file in measurement.files}
    if to.exists() or None in files.values():
        return
    temporary = out / f".{to.name}.{secrets.token_hex(4)}"
    temporary.mkdir(parents=True)
    try:
        for name in files:
            shutil.copy2(old / name, temporary / name)
        origin = dict(record["provenance"])
        origin["seconds"] = (origin.get("seconds") or {}).get(measurement.name)
        parts = {"measurement": measurement.name, "settings": chosen, "files": files}
        kept = {key: value for key, value in record.items() if key != "sha256"}
        write_record(temporary / RECORD, kept | parts | {"provenance": origin})
        temporary.rename(to)
    except OSError:
        if not to.exists():  # not made by another process in the meantime
            raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
