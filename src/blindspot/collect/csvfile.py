"""Reading a CSV of a run strictly: what is cut off, or not as declared, is never drawn."""

import io
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from blindspot.errors import BlindspotError


def refuse(path: Path, fault: str) -> BlindspotError:
    """The error for a result file that must not be drawn."""
    return BlindspotError(
        f"{path}: {fault}; restore the file from a copy, or remove its folder to have it made anew"
    )


def read_csv(path: Path, columns: Mapping[str, str], keys: Sequence[str]) -> pd.DataFrame:
    """Read a CSV that must have exactly `columns` (name to dtype) and no two rows of equal `keys`.

    Missing files, cut lines, other columns and values of another type raise `BlindspotError`
    with the file's name.
    """
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raise refuse(path, "no such file, though the record beside it says it is written") from None
    if not raw.endswith(b"\n"):
        raise refuse(path, "is cut off: its last line has no end")
    header = raw[: raw.index(b"\n")].decode("utf-8", "replace").rstrip("\r").split(",")
    if header != list(columns):
        odd = set(columns) ^ set(header)
        raise refuse(path, f"has other columns than expected ({', '.join(sorted(odd)) or 'order'})")
    try:
        with warnings.catch_warnings():
            # pandas only warns when rows have more values than the header.
            warnings.simplefilter("error", pd.errors.ParserWarning)
            frame = pd.read_csv(
                io.BytesIO(raw),
                dtype=dict(columns),
                index_col=False,
                # A cell may be named `null`; only what the column's type allows may be empty.
                keep_default_na=False,
                na_values={
                    name: ["", "nan"]
                    for name, kind in columns.items()
                    if kind in ("float64", "Int64")
                },
            )
    except (ValueError, pd.errors.ParserWarning) as error:
        raise refuse(path, f"is not readable as CSV ({error})") from None
    if frame.duplicated(list(keys)).any():
        twice = frame.loc[frame.duplicated(list(keys)).to_numpy(), list(keys)].iloc[0].to_dict()
        raise refuse(path, f"has two rows for {twice}")
    return frame
