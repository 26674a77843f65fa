"""The numbers that matter, for the terminal: what a study showed, in a few lines."""

import csv
import math
from pathlib import Path

from blindspot.errors import BlindspotError
from blindspot.files import read_json

#: The baseline that drifts, and the cell with the same losses that sees the scale.
BLIND, SEEING = "perloop-rms", "perloop-raw"


def summary(results: Path) -> str:
    """Lines on drift and on what depth buys, from the tables of a study's results folder."""
    study = read_json(results / "collected" / "study.json")
    loops = {cell["name"]: cell.get("loops") or study["loops"] for cell in study["cells"]}
    main = _read(results / "tables" / "main.csv")
    depth = [
        row
        for row in _read(results / "tables" / "depth.csv")
        if row["split"] == "validation" and row["protocol"] == "full"
    ]
    limit = next(
        float(row["ce"])
        for row in _read(results / "collected" / "baselines.csv")
        if (row["split"], row["baseline"]) == ("validation", "unigram")
    )
    lines = []
    for size in dict.fromkeys(row["size"] for row in main):
        # A cell without a finished run has its row, with nothing in it.
        norm = {r["cell"]: float(r["norm"]) for r in main if r["size"] == size and r["norm"]}
        if not {BLIND, SEEING} <= norm.keys():
            continue
        ratio = norm[BLIND] / norm[SEEING]
        lines.append(
            f"  {size}: norm of the last state {norm[BLIND]:,.1f} in {BLIND}, "
            f"{norm[SEEING]:,.1f} in {SEEING}: {ratio:,.0f} times"
        )
        for cell in (BLIND, SEEING):
            ce = {
                int(r["k"]): float(r["ce"]) for r in depth if (r["size"], r["cell"]) == (size, cell)
            }
            lines.append(
                f"  {size}: loops 2 to {loops[cell]} of {cell} change perplexity from "
                f"{_ppl(ce[1])} to {_ppl(ce[loops[cell]])}"
            )
            if min(ce.values()) >= limit:
                lines[-1] += f", no better than a unigram model ({_ppl(limit)})"
    return "\n".join(lines)


def _ppl(ce: float) -> str:
    return f"{math.exp(ce):,.1f}" if ce < 20 else f"e^{ce:.1f}"


def _read(path: Path) -> list[dict[str, str]]:
    try:
        with open(path, encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))
    except FileNotFoundError:
        raise BlindspotError(f"{path}: no such file; run `snakemake tables` first") from None
