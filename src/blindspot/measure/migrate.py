"""Convert results in the old layout, in which a run had one folder `measure-<hash8>/` for all
measurements.

The numbers stay the same. Each measurement gets its own folder, with its files unchanged and a
record that pins them by their old digests. Weights are not needed. The workflow and
`blindspot collect` do this automatically; where there is no old folder, nothing happens.
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
    """Convert the old folders of all runs of a study. Returns how many there were."""
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
    """Where a measurement of a run is gone, remove the file that says that the run is measured.
    The workflow then sees what has to be made."""
    files = RunFiles(study)
    for run in study.runs:
        if files.measured(run.name).exists() and files.unmeasured(run.name):
            files.measured(run.name).unlink(missing_ok=True)


def _take_up(old: Path, out: Path) -> bool:
    """Move the folder `old` into `out`. Returns whether this was done: a folder that cannot be
    read, was edited or has an older revision stays where it is and does not count as measured."""
    try:
        record = read_json(old / RECORD)
        if record["revision"] != SHARED_REVISION or record["sha256"] != seal(record):
            return False
        for measurement in declared.MEASUREMENTS.values():
            if measurement.revision == SHARED_REVISION:
                _split(old, out, record, measurement)
    except (BlindspotError, KeyError, TypeError, OSError):
        return False  # or another process is converting it at this moment
    shutil.rmtree(old, ignore_errors=True)
    return True


def _split(old: Path, out: Path, record: Mapping[str, Any], measurement: Measurement) -> None:
    """Copy one measurement of the folder `old` into its own folder, atomically."""
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
