"""The two pages of a study. README.md has all of it in place, as a repository browser shows it;
landing.html is what report.html opens on. Both begin alike (landing.py).

Links of README.md are relative to the folder. Pages are a function of the files beside them: equal
results give equal bytes.
"""

from pathlib import Path

from blindspot.collect.collected import Collected
from blindspot.errors import BlindspotError
from blindspot.files import write_text
from blindspot.publish import figures, landing, tables
from blindspot.publish.catalogue import FIGURES, ORDER, SWEEP, TABLES, item
from blindspot.publish.item import Item
from blindspot.publish.typeset import escape_markdown, escape_rst

#: Tables with more lines than this are folded up.
LONG = 30
#: What people wrote about the study, if they have.
FINDINGS = "FINDINGS.md"


def write(results: Path, command: str) -> None:
    """Write README.md and landing.html of `results` from `tables/`, `figures/`, the ledger and
    `collected/` in it.

    `command` is what makes the page again. Raises `BlindspotError` where a file is missing.
    """
    write_text(results / "README.md", page(results, command))
    landing.write(results, results / "landing.html")


def page(results: Path, command: str) -> str:
    """The page's Markdown."""
    there = [name for name in ORDER if _items(name, results)]
    links = [f"[{name}](#{name.lower()})" for name in ["Claims", *there, "Again"]]
    first = landing.opening(results)
    parts = [f"# Study {first.study}", "", *landing.markdown(first)]
    if (results / FINDINGS).exists():
        parts += [f"**What it found, in words: [{FINDINGS}]({FINDINGS}).**", ""]
    parts += [" · ".join(links), ""]
    parts += ["## Claims", "", *_folded("Ledger", _read(results / "claims.md"), "claims.csv")]
    for category in there:
        parts += [f"## {category}", "", *_items(category, results)]
    parts += _again(command)
    return "\n".join(parts).rstrip("\n") + "\n"


def caption(kind: str, name: str, collected: Path) -> str:
    """The whole caption of one of the `tables` or `figures`, as reStructuredText."""
    module, items = (tables, TABLES) if kind == "tables" else (figures, FIGURES)
    return escape_rst(f"{item(items, name).title}. {module.caption(name, collected)}")


def _items(category: str, results: Path) -> list[str]:
    """Figures, then tables of a category that are there."""
    parts: list[str] = []
    sweeps = [f"{SWEEP}{name}" for name in Collected(results / "collected").study.get("sweeps", {})]
    for figure in [*FIGURES.values(), *(item(FIGURES, name) for name in sweeps)]:
        there = (results / "figures" / f"{figure.name}.png").exists()
        parts += _figure(figure, results) if figure.category == category and there else []
    for table in [*TABLES.values(), *(item(TABLES, name) for name in sweeps)]:
        there = (results / "tables" / f"{table.name}.md").exists()
        parts += _table(table, results) if table.category == category and there else []
    return parts


def _figure(item: Item, results: Path) -> list[str]:
    caption = escape_markdown(figures.caption(item.name, results / "collected"))
    image = f"![{item.title}](figures/{item.name}.png)"
    return [f"### {item.title}", "", image, "", caption, ""]


def _table(item: Item, results: Path) -> list[str]:
    text = _read(results / "tables" / f"{item.name}.md")
    return [f"### {item.title}", "", *_folded(item.title, text, f"tables/{item.name}.csv")]


def _folded(title: str, text: str, csv: str) -> list[str]:
    """A table, folded up if it is long, between the words before and after it."""
    lines = [line for line in text.splitlines() if not line.startswith("# ")]
    rows = [at for at, line in enumerate(lines) if line.startswith("|")]
    first, last = rows[0], rows[-1] + 1
    before = [line for line in lines[:first] if line]
    table, after = lines[first:last], [line for line in lines[last:] if line]
    if len(table) - 2 > LONG:
        head = f"<details><summary>{title}: {len(table) - 2} rows</summary>"
        table = [head, "", *table, "", "</details>"]
    parts = [*before, "", *table] if before else table
    return [*parts, "", f"[Every number in full]({csv}). {' '.join(after)}", ""]


def _again(command: str) -> list[str]:
    return [
        "## Again",
        "",
        "Everything here is drawn from `collected/`, which is gathered from [`runs/`](runs/) and "
        "[`throughput/`](throughput/). To draw it again, without training and without torch:",
        "",
        "```sh",
        command,
        "```",
        "",
        "Each run's `run.json` holds its specification and where it comes from.",
    ]


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise BlindspotError(
            f"{path}: no such file; run `snakemake -c1 tables figures claims` first"
        ) from None
