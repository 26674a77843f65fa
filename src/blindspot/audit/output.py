"""What an audit leaves behind: audit.json, CSVs, figures and a page; and what it says.

audit.json        the report (fields: docs/audit.schema.json)
depths.csv        one row a loop x quantity: value, and its interval over windows
boundaries.csv    one row a boundary x factor x quantity
windows.csv       one row a window x loop (x factor) x quantity: what the intervals are made of
figures/          norms, boundaries, exits, as .pdf and .png
audit.html        all of it on one page, in one file
"""

import re
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from blindspot.audit import figures, page
from blindspot.audit.observe import Array, Observed
from blindspot.audit.report import Boundary, Depth, Estimate, Report
from blindspot.audit.wording import short
from blindspot.files import to_csv, write_json, write_text

DEPTHS = ("k", "trained", "quantity", "value", "low", "high")
BOUNDARIES = ("k", "factor", "quantity", "value", "low", "high")
WINDOWS = ("window", "k", "factor", "quantity", "value")


def folder_name(name: str) -> Path:
    """Folders for a model's name: `owner/name` and a run's three parts stay apart."""
    parts = [re.sub(r"[^\w.-]+", "-", part).strip(".") for part in Path(name).parts]
    return Path(*[part for part in parts if part.strip("-")] or ["model"])


def write(report: Report, seen: Observed, folder: Path) -> None:
    """Write the whole folder; audit.json last, so that where it is the rest is too."""
    write_text(folder / "depths.csv", to_csv(DEPTHS, depths(report.depths)))
    write_text(folder / "boundaries.csv", to_csv(BOUNDARIES, boundaries(report.boundaries)))
    write_text(folder / "windows.csv", to_csv(WINDOWS, windows(seen)))
    drawn = figures.draw(report, folder / "figures")
    write_text(folder / "audit.html", page.render(report, drawn))
    write_json(folder / "audit.json", report.model_dump(mode="json"))


def _cells(x: Estimate) -> list[str]:
    return ["" if v is None else f"{v:.9g}" for v in (x.value, x.low, x.high)]


def depths(found: list[Depth]) -> list[list[Any]]:
    """Rows of depths.csv."""
    rows = []
    for depth in found:
        for name, value in depth:
            if name in ("k", "trained") or value is None:
                continue
            shown = value if isinstance(value, Estimate) else Estimate(value=value)
            rows.append([depth.k, int(depth.trained), name, *_cells(shown)])
    return rows


def boundaries(found: list[Boundary]) -> list[list[Any]]:
    """Rows of boundaries.csv."""
    return [
        [boundary.k, f"{factor.factor:g}", name, *_cells(getattr(factor, name))]
        for boundary in found
        for factor in boundary.factors
        for name in ("kl", "exponent", "end")
    ]


def windows(seen: Observed) -> list[list[Any]]:
    """Rows of windows.csv."""
    rows: list[list[Any]] = []

    def add(k: int, factor: str, quantity: str, values: Array) -> None:
        rows.extend([n, k, factor, quantity, f"{x:.9g}"] for n, x in enumerate(values.tolist()))

    for k, norms in enumerate(seen.norms):
        add(k, "", "norm", norms.mean(-1))
        for name, values in zip(("common", "level", "rank"), seen.collapse[k], strict=True):
            add(k, "", name, values)
        if k:
            add(k, "", "angle", seen.angles[k - 1].mean(-1))
            add(k, "", "residual", seen.residual[k - 1].mean(-1))
            add(k, "", "ce", seen.ce[k - 1].mean(-1))
        if k > 1:
            add(k, "", "shift", np.median(seen.shift[k - 2], axis=-1))
        if 1 < k <= seen.loops:
            add(k, "", "clamp", (seen.clamped[k - 1] - seen.ce[k - 1]).mean(-1))
    for i, k in enumerate(seen.at):
        add(k, "", "noise_kl", np.median(seen.noise[i], axis=-1))
        ends = seen.ce_end[i] - seen.ce[seen.loops - 1]
        for j, a in enumerate(seen.factors):
            exponents = np.median(seen.log_ratio[i, j] / np.log(a), axis=-1)
            add(k, f"{a:g}", "kl", np.median(seen.kl[i, j], axis=-1))
            add(k, f"{a:g}", "exponent", exponents)
            add(k, f"{a:g}", "end", ends[j].mean(-1))
    return rows


def say(report: Report, folder: Path) -> None:
    """The verdict and two tables on the terminal."""
    console = Console()
    verdict, model = report.verdict, report.model
    console.print(
        f"[bold]{model.name}[/]: {model.loops} loops, {model.dtype}, "
        f"{report.text.tokens:,} tokens of {report.text.name}"
    )
    blind = {"yes": "[red]blind", "partly": "[yellow]partly blind", "no": "[green]not blind"}
    drift = "[red]drifting" if verdict.drifting else "[green]not drifting"
    console.print(f"verdict: [bold]{blind[verdict.blind]}[/], {drift}[/][/]\n")
    for sentence in verdict.sentences:
        console.print(f"- {sentence}", highlight=False)
    console.print()
    console.print(_boundary_table(report.boundaries))
    console.print(_depth_table(report))
    console.print(f"[dim]all of it: {folder / 'audit.html'}[/]", highlight=False)


def _boundary_table(found: list[Boundary]) -> Table:
    columns = ("after loop", "KL at x2, x1/2", "visible", "exponent", "carried", "blind")
    table = Table(*columns, title="Boundaries between loops", title_justify="left")
    for b in found:
        visible = "yes" if b.visible else "no"
        blind = b.blind + ("" if b.sure else " ?")
        exponent = short(b.carried_exponent)
        table.add_row(str(b.k), short(b.visible_kl), visible, exponent, b.carried, blind)
    return table


def _depth_table(report: Report) -> Table:
    columns = ("loop", "mean norm", "angle", "loss", "gain", "directions")
    table = Table(*columns, title="Loops (+: beyond the trained number)", title_justify="left")
    for d in report.depths:
        shown = map(short, (d.norm, d.angle, d.ce, d.gain, d.rank))
        table.add_row(f"{d.k}{'' if d.trained else ' +'}", *shown)
    return table
