"""What stands first on the two pages of a study, results/<study>/README.md and report.html: what
it is, its numbers, the verdicts of its ledger and the pictures that matter.

    opening(results)        -> all of that, once for both pages
    markdown(opening)       -> its lines of README.md
    write(results, file)    -> the landing page of report.html (workflow/report/landing.rst)

A study that is not finished, or without the cells that the numbers compare, shows what it has.
"""

import base64
import csv
import io
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import jinja2
from PIL import Image

from blindspot.collect.collected import Collected
from blindspot.errors import BlindspotError
from blindspot.files import write_text
from blindspot.publish import summary
from blindspot.publish.catalogue import FIGURES, SWEEP, item
from blindspot.publish.item import Item
from blindspot.publish.summary import Number
from blindspot.publish.typeset import escape_markdown
from blindspot.publish.verdicts import VERDICTS

#: The pictures that matter in any study, after those that it alone has.
PICTURES = ("norm-over-training", "perplexity-by-depth", "radial-fraction", "angle")
SHOWN = len(PICTURES)
#: Width of a picture on the landing page, pixels: enough for a sharp half page. The report has
#: each figure in full besides.
WIDTH = 1400
#: The verdicts that stand for a study without the three numbers.
DECIDED = ("supported", "contradicted", "inconclusive")


@dataclass(frozen=True)
class Opening:
    """What a study shows first. `facts`: what it is, by what is said of it. `missing`: sentences
    on what is not there. `verdicts`: how often each one stands in the ledger, by size."""

    study: str
    about: str
    facts: Mapping[str, str]
    missing: tuple[str, ...]
    numbers: tuple[Number, ...]
    verdicts: Mapping[str, Mapping[str, int]]
    pictures: tuple[Item, ...]

    @property
    def total(self) -> dict[str, int]:
        """Verdicts over all sizes, in the order of the ledger's."""
        counts = {v: sum(by.get(v, 0) for by in self.verdicts.values()) for v in VERDICTS}
        return {verdict: count for verdict, count in counts.items() if count}


def opening(results: Path) -> Opening:
    """The opening of the study in this folder, of `collected/`, `claims.csv` and `figures/`."""
    c = Collected(results / "collected")
    return Opening(
        study=str(c.study["study"]),
        about=c.about(),
        facts=_facts(c),
        missing=tuple(part for part in (*c.apart(), c.untimed()) if part),
        numbers=tuple(summary.numbers(c)),
        verdicts=_verdicts(results / "claims.csv"),
        pictures=tuple(_pictures(c, results / "figures")),
    )


def _facts(c: Collected) -> dict[str, str]:
    """Sizes, cells and seeds, how far the study is, and where it was trained."""
    planned, finished = sum(len(seeds) for seeds in c.planned.values()), len(c.runs)
    devices = ", ".join(c.study["devices"]["training"])
    facts = {
        "Sizes": ", ".join(size["name"] for size in c.study["sizes"]),
        "Cells": ", ".join(cell["name"] for cell in c.study["cells"]),
        "Seeds a cell": c.seeds().removeprefix("Seeds a cell: ").removesuffix("."),
        "Runs": f"{'all ' if finished == planned else f'{finished} of '}{planned} finished",
        "Trained on": f"{devices} at {c.study['precision']}" if devices else "",
    }
    return {name: text for name, text in facts.items() if text}


def _verdicts(ledger: Path) -> dict[str, dict[str, int]]:
    try:
        with open(ledger, encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
    except FileNotFoundError:
        raise BlindspotError(
            f"{ledger}: no such file; run `snakemake -c1 tables figures claims` first"
        ) from None
    found: dict[str, dict[str, int]] = {}
    for size in dict.fromkeys(row["size"] for row in rows):
        counts = Counter(row["verdict"] for row in rows if row["size"] == size)
        found[size] = {verdict: counts[verdict] for verdict in VERDICTS if counts[verdict]}
    return found


def _pictures(c: Collected, folder: Path) -> list[Item]:
    """Figures that answer this study's own question, then its sweeps' where it has no other, then
    those of any study; of them those that are drawn."""
    own = [figure for figure in FIGURES.values() if figure.asks]
    swept = [item(FIGURES, f"{SWEEP}{name}") for name in c.study.get("sweeps", {})]
    own, swept = ([f for f in some if (folder / f"{f.name}.png").exists()] for some in (own, swept))
    common = [FIGURES[name] for name in PICTURES if (folder / f"{name}.png").exists()]
    return [*(own or swept[:1]), *common][:SHOWN]


def markdown(o: Opening) -> list[str]:
    """The opening as lines of Markdown. The pictures are further down the page, so only named."""
    facts = [f"{name}: {text}." for name, text in o.facts.items()]
    lines = [escape_markdown(" ".join([o.about, *facts, *o.missing])), ""]
    if o.numbers:
        lines += [
            "| | size | mean over seeds | 95 % interval | |",
            "| --- | --- | ---: | --- | --- |",
        ]
        for what in dict.fromkeys(n.what for n in o.numbers):
            for n in (n for n in o.numbers if n.what == what):
                row = [what, n.size, f"**{n.shown}**", n.spread, n.detail]
                lines.append("| " + " | ".join(map(escape_markdown, row[:2])) + f" | {row[2]} | ")
                lines[-1] += " | ".join(map(escape_markdown, row[3:])) + " |"
        lines.append("")
    for size, counts in o.verdicts.items():
        said = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
        lines.append(escape_markdown(f"- Claims at {size}: {said}."))
    return [*lines, ""]


def write(results: Path, file: Path) -> None:
    """Write the landing page of report.html to `file`: a piece of HTML with the pictures in it.

    `results` as Snakemake names it: the links lead to the report's own pages of its files.
    """
    o = opening(results)
    template = files("blindspot.publish").joinpath("landing.html.j2").read_text("utf-8")
    html = jinja2.Template(template, autoescape=True, trim_blocks=True, lstrip_blocks=True).render(
        o=o,
        whats=list(dict.fromkeys(n.what for n in o.numbers)),
        decided=DECIDED,
        images={f.name: _image(results / "figures" / f"{f.name}.png") for f in o.pictures},
        results=results.as_posix(),
    )
    write_text(file, html)


def _image(png: Path) -> str:
    """A figure as a data URI, small enough to be on the page besides the whole one."""
    with Image.open(png) as image:
        height = round(image.height * WIDTH / image.width)
        small = image.convert("RGB").resize((WIDTH, height), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    small.quantize(128, dither=Image.Dither.NONE).save(buffer, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")
