"""From the result folders of single runs to a few tidy tables of the whole study.

Everything that is drawn or tabulated goes through here, so this is where a damaged, hand-edited
or foreign result file is found: its name is in the error, and nothing is written from it.
"""

from pathlib import Path
from typing import Any

import pandas as pd
from pydantic import ValidationError

from blindspot.collected import read_csv, refuse
from blindspot.errors import BlindspotError
from blindspot.files import atomic_path, read_json, sha256_file, write_json
from blindspot.flops import training_per_token
from blindspot.probes import PROBES
from blindspot.revisions import MEASUREMENT_REVISION, THROUGHPUT_REVISION, TRAINING_REVISION
from blindspot.sources import SOURCES, THROUGHPUT, Context, finite
from blindspot.spec import RunSpec
from blindspot.study import Run, Study

#: All files of a run, by the name of the table that they are gathered in.
FILES = SOURCES | PROBES
#: From run.json's provenance into runs.csv.
PROVENANCE = ["device", "threads", "precision", "seconds", "tokens_per_s", "started", "finished"]


def collect(study: Study, out: Path) -> None:
    """Write `out/runs.csv`, one CSV a file of `FILES`, `throughput.csv` and, last, `study.json`.

    Rows are in the order of the config's sizes, cells and seeds. A run that failed, is not trained
    or not measured is listed under `missing`; a fault in a file that is there raises
    `BlindspotError`.
    """
    parts: dict[str, list[pd.DataFrame]] = {name: [] for name in FILES}
    rows: list[dict[str, Any]] = []
    records: list[tuple[Run, dict[str, Any]]] = []
    missing: list[dict[str, str]] = []
    for run in study.runs:
        folder = study.results / "runs" / run.name
        measured = folder / f"measure-{study.measurement_hash}"
        if not (folder / "run.json").exists():
            missing.append({"run": run.name, "reason": _why_not_trained(folder, run)})
            continue
        record = read_run(folder, run)
        if not (measured / "measure.json").exists():
            missing.append({"run": run.name, "reason": "not measured"})
            continue
        _check_measure(measured, run)
        lead = {"size": run.size, "cell": run.cell, "seed": run.seed, "run": run.name}
        for name, source in FILES.items():
            path = (measured if source.measured else folder) / source.file
            frame = read_csv(path, source.columns, source.keys)
            source.check(frame, Context(path, run, record["steps"]))
            frame = frame.sort_values(source.keys, kind="stable", ignore_index=True)
            for at, (key, value) in enumerate(lead.items()):
                frame.insert(at, key, value)
            parts[name].append(frame)
        flops = training_per_token(run.spec.model, run.spec.objective)
        rows.append({**lead, **_run_row(record), "train_flops_per_token": flops})
        records.append((run, record))
    if not records:
        raise BlindspotError(
            f"{study.results / 'runs'}: no run of study {study.config.study!r} is trained and "
            f"measured, so there is nothing to publish; run `snakemake runs` first"
        )
    _check_together(study, records, pd.concat(parts["exits"], ignore_index=True))

    throughput, untimed = _throughput(study)
    tables = {"runs": pd.DataFrame(rows), "throughput": throughput}
    tables |= {name: pd.concat(frames, ignore_index=True) for name, frames in parts.items()}
    for name, table in tables.items():
        with atomic_path(out / f"{name}.csv") as temporary:
            # Without a float format pandas writes the shortest text that reads back the same.
            table.to_csv(temporary, index=False, lineterminator="\n")
    write_json(out / "study.json", _describe(study, records, missing, untimed, throughput))


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
    if record["revision"] != spec.revision or spec.revision != run.spec.revision:
        raise refuse(
            path,
            f"is of training revision {record['revision']}, this study of {run.spec.revision}; "
            f"runs of two revisions are not comparable",
        )
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
    _check_digests(folder, path, record)
    return dict(record)


def _check_measure(folder: Path, run: Run) -> None:
    path = folder / "measure.json"
    record = read_json(path)
    if not isinstance(record, dict):
        raise refuse(path, "is not a record")
    expectations = {"run": run.name, "hash": run.spec.hash, "revision": MEASUREMENT_REVISION}
    for key, expected in expectations.items():
        if record.get(key, expected) != expected:
            raise refuse(path, f"says {key} {record[key]!r}, expected {expected!r}")
    _check_digests(folder, path, record)


def _check_digests(folder: Path, path: Path, record: dict[str, Any]) -> None:
    """A record may pin its files (`files`: name to SHA-256): the one sure way to see an edit."""
    for name, expected in record.get("files", {}).items():
        file = folder / name
        if not file.is_file():
            raise refuse(file, f"missing, though {path.name} lists it")
        if sha256_file(file) != expected:
            raise refuse(file, f"is not the file that {path.name} was written for (SHA-256)")


def _run_row(record: dict[str, Any]) -> dict[str, Any]:
    provenance = record["provenance"]
    return {
        "steps": record["steps"],
        "tokens_seen": record["tokens_seen"],
        "parameters": record["parameters"],
        **{key: provenance.get(key) for key in PROVENANCE},
        "commit": provenance.get("commit"),
        "dirty": provenance.get("dirty"),
        "torch": provenance.get("versions", {}).get("torch"),
    }


def _check_together(
    study: Study, records: list[tuple[Run, dict[str, Any]]], exits: pd.DataFrame
) -> None:
    """Faults that only show when runs are laid side by side."""
    first_run, first = records[0]
    for run, record in records:
        if record.get("data") != first.get("data"):
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


def _throughput(study: Study) -> tuple[pd.DataFrame, list[str]]:
    """Throughput of every cell by size and depth, and the sizes that are not timed."""
    frames: list[pd.DataFrame] = []
    untimed: list[str] = []
    c = study.config
    for size in c.sizes:
        path = study.results / "throughput" / f"{size}-{study.throughput_hash(size)}.csv"
        if not path.exists():
            untimed.append(size)
            continue
        frame = read_csv(path, THROUGHPUT, ["architecture", "k"])
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
        depths = list(range(1, c.model.loops + 1))
        for label in study.architectures(size):
            found = sorted(frame.loc[frame["architecture"] == label, "k"])
            if found[: len(depths)] != depths:
                raise refuse(path, f"times architecture {label} at k = {found}, not at {depths}")
        q25, median, q75 = (frame[f"tokens_per_s{q}"] for q in ("_q25", "", "_q75"))
        finite(frame, path, ["tokens_per_s", "tokens_per_s_q25", "tokens_per_s_q75"], above=0)
        if not ((q25 <= median) & (median <= q75)).all():
            raise refuse(path, "has a median outside its quartiles")
        for name in c.cells:
            rows = frame[frame["architecture"] == study.architecture(name)].sort_values("k")
            rows.insert(0, "size", size)
            rows.insert(1, "cell", name)
            frames.append(rows)
    if not frames:
        return pd.DataFrame(columns=["size", "cell", *THROUGHPUT]), untimed
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
        for key in ("steps", "tokens_seen"):
            if len({record[key] for record in own}) > 1:
                raise BlindspotError(
                    f"{study.results / 'runs' / name}: runs of one size differ in {key}: "
                    f"{sorted({record[key] for record in own})}; they cannot be compared"
                )
        sizes.append(
            {
                "name": name,
                **size.model_dump(mode="json", exclude={"seeds"}),
                "seeds": list(size.seeds or c.grid.seeds),
                "steps": own[0]["steps"] if own else None,
                "tokens_seen": own[0]["tokens_seen"] if own else None,
            }
        )
    provenance = [record["provenance"] for _, record in records]
    return {
        "study": c.study,
        "corpus": c.corpus.label,
        "tokenizer": c.tokenizer.identity(),
        "data": records[0][1].get("data"),
        "windows": c.windows.identity(),
        "loops": c.model.loops,
        "model": c.model.identity(),
        "sizes": sizes,
        "cells": [{"name": name, **cell.identity()} for name, cell in c.cells.items()],
        "training": c.training.identity(),
        "precision": c.training.precision,
        "measurement": c.measurement.identity(),
        "devices": {
            "training": sorted({str(p.get("device")) for p in provenance}),
            "throughput": {
                str(size): str(rows["device"].iloc[0])
                for size, rows in throughput.groupby("size", sort=False)
            },
        },
        "commits": sorted(
            {f"{p.get('commit')}{' (changed)' if p.get('dirty') else ''}" for p in provenance}
        ),
        "collected": len(records),
        "missing": missing,
        "throughput_missing": untimed,
        "revisions": {
            "training": TRAINING_REVISION,
            "measurement": MEASUREMENT_REVISION,
            "throughput": THROUGHPUT_REVISION,
        },
    }
