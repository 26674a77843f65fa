"""Measured rows: shown as a Markdown table, and kept at the end of a CSV file."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def show(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print a Markdown table."""
    print("| " + " | ".join(columns) + " |\n|" + "---|" * len(columns))
    for row in rows:
        print("| " + " | ".join(map(str, row)) + " |")


def keep(path: Path, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Append rows to a CSV file; a new one begins with the names of its columns."""
    new = not path.exists()
    with open(path, "a", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows(([columns] if new else []) + list(rows))
