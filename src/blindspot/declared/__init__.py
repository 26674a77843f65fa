"""What the stages write: each file's columns, with types, units, meanings and checks.

A measurement is declared in a module of its own (`MEASUREMENT`) and computed by the module of the
same name in `measure/`. This list is all that the workflow, `collect` and the documents know.
Imports nothing heavy: Snakemake reads it at the start of every job.
"""

from collections.abc import Mapping

from blindspot.declared import (
    baselines,
    clamp,
    collapse,
    exits,
    gathered,
    gradients,
    halting,
    lemma2,
    norms,
    scale_response,
    spectrum,
    throughput,
    training,
    updates,
    windows,
)
from blindspot.declared.columns import File
from blindspot.declared.measurement import Measurement
from blindspot.settings import Settings, digest

#: In the order in which they are made.
MEASUREMENTS: dict[str, Measurement] = {
    module.MEASUREMENT.name: module.MEASUREMENT
    for module in (
        baselines,
        exits,
        windows,
        norms,
        collapse,
        gradients,
        updates,
        lemma2,
        clamp,
        scale_response,
        halting,
        spectrum,
    )
}

#: Every file of a run, its training log first, by name.
FILES: dict[str, File] = {
    file.name: file
    for files in (training.FILES, *(m.files for m in MEASUREMENTS.values()))
    for file in files
}

#: Every file of `collected/`, by name.
COLLECTED: dict[str, File] = {
    file.name: file
    for file in (gathered.RUNS, *FILES.values(), throughput.THROUGHPUT, gathered.PROVENANCE)
}


def folders(settings: Settings) -> dict[str, str]:
    """Name of each measurement to the name of its folder, under a study's settings."""
    return {name: measurement.folder(settings) for name, measurement in MEASUREMENTS.items()}


def complete(folders: Mapping[str, str]) -> str:
    """Name of the file that says that a run has all of these folders: `all-<hash8>.json`."""
    return f"all-{digest(sorted(folders.values()))}.json"
