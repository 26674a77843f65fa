"""Measurements as a job leaves them, as far as those who plan look at them: their records."""

import json
import shutil

from blindspot import declared
from blindspot.config.runfiles import RunFiles
from blindspot.files import write_record
from blindspot.measure.migrate import SHARED_REVISION


def leave(study, name, provenance=None, but=()):
    """The records of a run's measurements, with today's settings, and the file that says that all
    are there. `provenance` gives that of a measurement by its name."""
    files = RunFiles(study)
    for measurement in declared.MEASUREMENTS.values():
        if measurement.name in but:
            continue
        record = {
            "measurement": measurement.name,
            "revision": measurement.revision,
            "settings": measurement.chosen(study.config.measurement),
            "provenance": provenance(measurement.name) if provenance else {},
        }
        path = files.record(name, measurement.name)
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(record))
    files.measured(name).write_text("{}")


def as_before(folder):
    """Lay a run's measurements out as versions of before did: one folder and record for all."""
    value = {"files": {}, "settings": {}}
    seconds = {}
    old = folder / "measure-0123abcd"
    old.mkdir()
    for path in sorted(folder.glob("measure/*/measure.json")):
        one = json.loads(path.read_text())
        if one["revision"] != SHARED_REVISION:
            continue
        for name in one["files"]:
            (path.parent / name).rename(old / name)
        value["files"] |= one["files"]
        value["settings"] |= one["settings"]
        seconds[one["measurement"]] = one["provenance"].get("seconds")
        value |= {key: one[key] for key in ("run", "hash", "revision")}
        value["provenance"] = one["provenance"] | {"seconds": seconds}
        shutil.rmtree(path.parent)
    for path in folder.glob("measure/all-*.json"):
        path.unlink()
    write_record(old / "measure.json", value)
    return old
