"""Croissant metadata of `collected/`: every CSV and its digest, every column's type and meaning.

https://docs.mlcommons.org/croissant. Needs `mlcroissant` (the extra `share`).
"""

import json
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pandas as pd

from blindspot.declared import COLLECTED
from blindspot.declared.columns import COUNT, FLAG, FLOAT, INT, Column
from blindspot.errors import BlindspotError
from blindspot.files import read_json, sha256_file, write_text

NAME = "croissant.json"
LICENSE = "https://spdx.org/licenses/MIT"


def write(collected: Path, url: str) -> Path:
    """Write `croissant.json` beside the CSVs of the folder `collected`, for publication at `url`.

    Raises `BlindspotError` where there is no collected study, or mlcroissant is not installed.
    """
    try:
        import mlcroissant as mlc
    except ImportError:
        raise BlindspotError(
            "mlcroissant is not installed; run: .venv/bin/pip install 'mlcroissant>=1.1'"
        ) from None
    study = read_json(collected / "study.json")
    types = {
        INT: mlc.DataType.INTEGER,
        COUNT: mlc.DataType.INTEGER,
        FLOAT: mlc.DataType.FLOAT,
        FLAG: mlc.DataType.BOOL,
    }
    columns = {c.name: c for file in COLLECTED.values() for c in file.columns}
    files, records = [], []
    for name, file in COLLECTED.items():
        path = collected / file.csv
        if not path.exists():
            continue
        own = {column.name: column for column in file.columns}
        header = pd.read_csv(path, nrows=0).columns
        files.append(
            mlc.FileObject(
                id=file.csv,
                name=file.csv,
                description=_one_line(f"One row for {file.row}. {file.note}"),
                content_url=file.csv,
                content_size=f"{path.stat().st_size} B",
                encoding_formats=["text/csv"],
                sha256=sha256_file(path),
            )
        )
        fields = [
            mlc.Field(
                id=f"{name}/{column}",
                name=column,
                description=_meaning(own.get(column) or columns[column]),
                data_types=[
                    types.get((own.get(column) or columns[column]).type, mlc.DataType.TEXT)
                ],
                source=mlc.Source(file_object=file.csv, extract=mlc.Extract(column=column)),
            )
            for column in header
        ]
        records.append(
            mlc.RecordSet(id=name, name=name, description=f"One row for {file.row}.", fields=fields)
        )
    try:
        metadata = mlc.Metadata(
            name=f"blindspot-{study['study']}",
            description=(
                f"Measurements of the study {study['study']} of the readout blind spot in looped "
                f"language models, on {study['corpus']}: losses, norms, updates, gradients and "
                f"halting of every run at every loop."
            ),
            cite_as="See CITATION.cff of blindspot.",
            date_published=datetime.now(UTC).replace(microsecond=0),
            license=[LICENSE],
            url=url,
            version=version("blindspot"),
            distribution=files,
            record_sets=records,
        )
    except mlc.ValidationError as error:
        raise BlindspotError(f"{collected}: no valid Croissant: {error}") from None
    out = collected / NAME
    write_text(out, json.dumps(metadata.to_json(), indent=1, default=_text) + "\n")
    return out


def _meaning(column: Column) -> str:
    return _one_line(f"{column.meaning}{f' [{column.unit}]' if column.unit else ''}")


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _text(value: Any) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)
