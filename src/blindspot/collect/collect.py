"""From the result folders of single runs to a few tidy tables of the whole study.

Everything that is drawn or tabulated goes through here, so this is where a damaged, hand-edited
or foreign result file is found: its name is in the error, and nothing is written from it.
"""

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from blindspot.collect.csvfile import read_csv, refuse
from blindspot.collect.records import (
    check_digests,
    provenance,
    read_measure,
    read_run,
    read_timing,
    same_tokens,
)
from blindspot.collect.stats import outlying
from blindspot.config.flops import training_per_token
from blindspot.config.revisions import (
    DATA_REVISION,
    THROUGHPUT_REVISION,
    TRAINING_REVISION,
)
from blindspot.config.runfiles import RunFiles
from blindspot.config.study import Run, Study
from blindspot.config.studyclaims import described as claims
from blindspot.config.sweeps import points
from blindspot.declared import FILES, MEASUREMENTS, training
from blindspot.declared.columns import COUNT, Context, File
from blindspot.declared.gathered import PROVENANCE, RUNS
from blindspot.declared.throughput import THROUGHPUT
from blindspot.errors import BlindspotError
from blindspot.files import atomic_path, read_json, write_json
from blindspot.settings import canonical

#: From run.json's provenance into runs.csv.
RUN = ["device", "threads", "precision", "seconds", "compile_seconds", "tokens_per_s", "started",
       "finished"]  # fmt: skip
COUNTS = ["seed", *(c.name for c in PROVENANCE.columns if c.type == COUNT)]
#: In these alone the records of one measuring job may differ.
OWN = ("revision", "started", "finished")


def collect(study: Study, out: Path) -> None:
    """Write one CSV for each of `declared.COLLECTED` and, last, study.json into `out`.

    Rows are in the order of the config's sizes, cells and seeds. A run that failed, is not trained
    or lacks a measurement is listed under `missing`, one far from its cell's other seeds under
    `outliers`, and a folder of no planned run under `strays`. A fault in a file that is there
    raises `BlindspotError`.
    """
    parts: dict[str, list[pd.DataFrame]] = {name: [] for name in FILES}
    rows: list[dict[str, Any]] = []
    records: list[tuple[Run, dict[str, Any]]] = []
    origins: list[dict[str, Any]] = []
    missing: list[dict[str, str]] = []
    files = RunFiles(study)
    for run in study.runs:
        trained = files.finished(run.name)
        if not trained.exists():
            reason = _why_not_trained(trained.parent, run)
            missing.append({"run": run.name, "reason": reason})
            continue
        record = read_run(trained.parent, run)
        if lacking := files.unmeasured(run.name):
            which = "" if len(lacking) == len(MEASUREMENTS) else f": {', '.join(lacking)}"
            missing.append({"run": run.name, "reason": f"not measured{which}"})
            continue
        # Whose record stands for which files.
        found: dict[Path, tuple[dict[str, Any], tuple[File, ...]]]
        found = {trained: (record, training.FILES)}
        for name, measurement in MEASUREMENTS.items():
            path = files.record(run.name, name)
            scored = read_measure(path.parent, run, study, measurement)
            same_tokens(path, scored, record)
            found[path] = (scored, measurement.files)
        lead = {"size": run.size, "cell": run.cell, "seed": run.seed, "run": run.name}
        for path, (_, written) in found.items():
            for file in written:
                frame = read(path.parent / file.csv, file, Context(run.spec, record["steps"]))
                for at, (key, value) in enumerate(lead.items()):
                    frame.insert(at, key, value)
                parts[file.name].append(frame)
        for path, (of, written) in found.items():
            check_digests(path, of, {file.csv for file in written})
        flops = training_per_token(run.spec.model, run.spec.objective)
        rows.append({**lead, **_run_row(record), "train_flops_per_token": flops})
        records.append((run, record))
        data = run.spec.data["revision"]
        origins.append({**lead, "stage": "training", **provenance(record, data)})
        made = {path: of for path, (of, _) in found.items() if path != trained}
        origins += [lead | origin for origin in _measuring_jobs(made.values(), data)]
    if not records:
        raise BlindspotError(
            f"{study.results / 'runs'}: no run of study {study.config.study!r} is trained and "
            f"measured, so there is nothing to publish; run `snakemake runs` first"
        )
    exits = pd.concat(parts["exits"], ignore_index=True)
    _check_together(study, records, exits)
    strays = _strays(study)
    if strays:
        print(f"{study.config.study}: not part of this study: {', '.join(strays)}", file=sys.stderr)

    throughput, untimed = _throughput(study, origins)
    tables = {"runs": pd.DataFrame(rows, columns=RUNS.header), "throughput": throughput}
    whole = dict.fromkeys(COUNTS, "Int64")  # a count that is not known is empty, not a fraction
    tables["provenance"] = pd.DataFrame(origins, columns=PROVENANCE.header).astype(whole)
    tables |= {name: pd.concat(frames, ignore_index=True) for name, frames in parts.items()}
    for name, table in tables.items():
        with atomic_path(out / f"{name}.csv") as temporary:
            # Without a float format pandas writes the shortest text that reads back the same.
            table.to_csv(temporary, index=False, lineterminator="\n")
    described = _describe(study, records, missing, untimed, throughput)
    described |= {"outliers": _outliers(study, exits), "strays": strays}
    write_json(out / "study.json", described)


def _strays(study: Study) -> list[str]:
    """Folders among the study's runs that are none of its runs: copies, other seeds or settings."""
    root = study.results / "runs"
    planned = {run.name for run in study.runs}
    found = ("/".join(path.parts[-3:]) for path in root.glob("*/*/*") if path.is_dir())
    return sorted(name for name in found if name not in planned)


def _outliers(study: Study, exits: pd.DataFrame) -> list[dict[str, str]]:
    """Runs whose CE at their last loop is far from that of the other seeds of their cell."""
    chosen = exits[(exits["split"] == "validation") & (exits["protocol"] == "full")]
    last = chosen[chosen["k"] == chosen["trained_k"]].set_index("run")["ce"].to_dict()
    cells: dict[tuple[str, str], dict[int, Run]] = {}
    for run in study.runs:
        if run.name in last:
            cells.setdefault((run.size, run.cell), {})[run.seed] = run
    return [
        {
            "run": runs[seed].name,
            "reason": f"CE {last[runs[seed].name]:.2f}, median of the others {median:.2f}",
        }
        for runs in cells.values()
        for seed, median in outlying({n: last[run.name] for n, run in runs.items()}).items()
    ]


def read(path: Path, file: File, at: Context) -> pd.DataFrame:
    """A CSV of a run, checked against its declaration, its rows in the order of its keys."""
    frame = read_csv(path, file.types, file.keys)
    for fault in file.faults(frame, at):
        raise refuse(path, fault)
    return frame.sort_values(list(file.keys), kind="stable", ignore_index=True)


def _measuring_jobs(
    records: Iterable[dict[str, Any]], data_revision: int
) -> Iterator[dict[str, Any]]:
    """Where measurements come from: one row for those of one job."""
    jobs: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    for record in records:
        origin = provenance(record, data_revision)
        same = {key: value for key, value in origin.items() if key not in OWN}
        jobs.setdefault(canonical(same), []).append((record["measurement"], origin))
    for members in jobs.values():
        origin = members[0][1]
        # Times of records of before are those of the whole job, or unknown.
        for key, pick in (("started", min), ("finished", max)):
            known = [o[key] for _, o in members if o[key] is not None]
            origin[key] = pick(known, default=None)
        # study.json has the revisions of all measurements.
        revisions = {o["revision"] for _, o in members}
        origin["revision"] = revisions.pop() if len(revisions) == 1 else None
        names = " ".join(name for name, _ in members)
        yield {"stage": "measurement", "measurements": names, **origin}


def _why_not_trained(folder: Path, run: Run) -> str:
    """The trainer leaves a record where a run came to its end without weights."""
    path = folder / "failed.json"
    if not path.exists():
        return "not trained"
    record = read_json(path)
    keys = {"name": run.name, "hash": run.spec.hash}
    if not isinstance(record, dict) or any(record.get(k) != v for k, v in keys.items()):
        raise refuse(path, f"is not the record of run {run.name}")
    # `step` counts the steps that were done. The message says first what happened, then what was
    # left where on that machine, which is nothing for a table.
    error = str(record.get("error")).removeprefix(f"{run.name}: ").partition(";")[0]
    return f"failed at step {record.get('step', -1) + 1}: {error}"


def _run_row(record: dict[str, Any]) -> dict[str, Any]:
    found = record["provenance"]
    return {
        "steps": record["steps"],
        "tokens_seen": record["tokens_seen"],
        "parameters": record["parameters"],
        **{key: found.get(key) for key in RUN},
        "commit": found.get("commit"),
        "dirty": found.get("dirty"),
        "torch": found.get("versions", {}).get("torch"),
    }


def _ids(record: dict[str, Any]) -> Any:
    """What says which token ids a run was trained on; how their files are laid out may differ."""
    data = record.get("data") or {}
    splits = data.get("splits")
    return [s.get("sha256") for _, s in sorted(splits.items())] if splits else data


def _check_together(
    study: Study, records: list[tuple[Run, dict[str, Any]]], exits: pd.DataFrame
) -> None:
    """Faults that only show when runs are laid side by side."""
    first_run, first = records[0]
    for run, record in records:
        if _ids(record) != _ids(first):
            raise refuse(
                study.results / "runs" / run.name / "run.json",
                f"was trained on other token files than {first_run.name} (key data)",
            )
    for (split, protocol), group in exits.groupby(["split", "protocol"]):
        for count in ("tokens", "words", "bytes"):
            # Counts that are not known (empty) are alike too: all or none.
            values = group[count].fillna(0)
            usual = values.mode().iloc[0]
            odd = group[values != usual]
            if len(odd):
                raise refuse(
                    study.results / "runs" / odd["run"].iloc[0],
                    f"was scored on {odd[count].iloc[0]} {count} of {split} (protocol "
                    f"{protocol}), the other runs on {usual}",
                )


def _throughput(study: Study, origins: list[dict[str, Any]]) -> tuple[pd.DataFrame, list[str]]:
    """Throughput of every cell by size and depth, and the sizes that are not timed.

    Appends to `origins` where each table comes from.
    """
    frames: list[pd.DataFrame] = []
    untimed: list[str] = []
    c, files = study.config, RunFiles(study)
    for size in c.sizes:
        path = files.throughput(size)
        if not path.exists():
            untimed.append(size)
            continue
        record = read_timing(path)
        origins.append({"size": size, "stage": "throughput", **provenance(record, None)})
        frame = read_csv(path, THROUGHPUT.types, THROUGHPUT.keys)
        constant = {
            "batch": c.throughput.batch,
            "context": c.windows.length,
            "precision": c.training.precision,
            "repeats": c.throughput.repeats,
        }
        for column, expected in constant.items():
            for value in frame[column].unique():
                if value != expected:
                    raise refuse(path, f"has {column} {value}, the study {expected}")
        for column in ("device", "threads"):
            if frame[column].nunique() != 1:
                raise refuse(
                    path,
                    f"mixes {column} {', '.join(map(str, frame[column].unique()))}; speeds of "
                    f"different machines cannot stand in one table: time size {size} on one",
                )
        for label, spec in study.architectures(size).items():
            depths = list(range(1, spec.loops + 1))
            found = sorted(frame.loc[frame["architecture"] == label, "k"])
            if found[: len(depths)] != depths:
                raise refuse(path, f"times architecture {label} at k = {found}, not at {depths}")
        # Of no run: nothing in it is checked against one.
        for fault in THROUGHPUT.faults(frame, Context(None, 0)):
            raise refuse(path, fault)
        check_digests(path.with_suffix(".json"), record, {path.name})
        for name in c.cells_at(size):
            rows = frame[frame["architecture"] == study.architecture(name)].sort_values("k")
            rows.insert(0, "size", size)
            rows.insert(1, "cell", name)
            frames.append(rows)
    if not frames:
        return pd.DataFrame(columns=["size", "cell", *THROUGHPUT.header]), untimed
    return pd.concat(frames, ignore_index=True), untimed


def _describe(
    study: Study,
    records: list[tuple[Run, dict[str, Any]]],
    missing: list[dict[str, str]],
    untimed: list[str],
    throughput: pd.DataFrame,
) -> dict[str, Any]:
    """What `study.json` says: all that captions and tables need besides the numbers."""
    c = study.config
    sizes = []
    for name, size in c.sizes.items():
        own = [record for run, record in records if run.size == name]
        for cell in c.cells_at(name):
            steps = {r["steps"] for run, r in records if (run.size, run.cell) == (name, cell)}
            if len(steps) > 1:
                raise BlindspotError(
                    f"{study.results / 'runs' / name / cell}: runs of one cell differ in steps: "
                    f"{sorted(steps)}; they cannot be compared"
                )
        common = {key: {record[key] for record in own} for key in ("steps", "tokens_seen")}
        sizes.append(
            {
                "name": name,
                **size.model_dump(mode="json", exclude={"seeds", "cells"}),
                "seeds": list(size.seeds or c.grid.seeds),
                "planned": {cell: list(c.seeds_of(name, cell)) for cell in c.cells_at(name)},
                # Null where there is no run, or cells train for lengths of their own.
                **{key: min(found) if len(found) == 1 else None for key, found in common.items()},
            }
        )
    found = [record["provenance"] for _, record in records]
    return {
        "study": c.study,
        "corpus": c.corpus.label,
        "tokenizer": c.tokenizer.identity(),
        "data": records[0][1].get("data"),
        "windows": c.windows.identity(),
        "loops": c.model.loops,
        "model": c.model.model_dump(mode="json"),
        "sizes": sizes,
        "cells": [{"name": name, **cell.described(c.model)} for name, cell in c.cells.items()],
        "sweeps": {name: [p.described() for p in points(c, name)] for name in c.sweeps},
        "claims": claims(c),
        "training": c.training.model_dump(mode="json"),
        "precision": c.training.precision,
        "measurement": c.measurement.model_dump(mode="json"),
        "devices": {
            "training": sorted({str(p.get("device")) for p in found}),
            "throughput": {
                str(size): str(rows["device"].iloc[0])
                for size, rows in throughput.groupby("size", sort=False)
            },
        },
        "commits": sorted(
            {f"{p.get('commit')}{' (changed)' if p.get('dirty') else ''}" for p in found}
        ),
        "collected": len(records),
        "missing": missing,
        "throughput_missing": untimed,
        "revisions": {
            "data": DATA_REVISION,
            "training": TRAINING_REVISION,
            "throughput": THROUGHPUT_REVISION,
            **{name: measurement.revision for name, measurement in MEASUREMENTS.items()},
        },
    }
