"""Tables: each a function of the collected results, as CSV, Markdown, LaTeX (booktabs) and HTML.

    write(name, collected, out)     -> out/name.csv, .md, .tex, .html
    caption(name, collected)        -> the note that stands under the table

The CSV has every number in full. The others show the same numbers, rounded by one rule
(`typeset.number`), and escaped after rounding, once.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

from blindspot.collect.collected import Collected
from blindspot.errors import BlindspotError
from blindspot.files import atomic_path, write_text
from blindspot.publish import sweeps
from blindspot.publish.catalogue import TABLES, item
from blindspot.publish.item import Functions
from blindspot.publish.tables.sweep import table as sweep_table
from blindspot.publish.tables.table import Table
from blindspot.publish.typeset import latex, markdown, page

#: Name to the function that makes it, as the catalogue has it.
MADE: Mapping[str, Callable[[Collected], Table]] = Functions(__name__, TABLES)
#: Tables that are not of means over runs: of architectures, of single results.
OF_ITS_OWN = {"throughput", "provenance"}


def write(name: str, collected: Path, out: Path) -> None:
    """Write table `name` of the folder that `collect` wrote in four formats."""
    c, sweep = Collected(collected), sweeps.named(name)
    if sweep is None and name not in MADE:
        raise BlindspotError(f"no table {name!r}; there are {', '.join(MADE)}")
    table = MADE[name](c) if sweep is None else sweep_table(c, sweep)
    note = " ".join(part for part in (caption(name, collected), table.note) if part)
    with atomic_path(out / f"{name}.csv") as temporary:
        table.data.to_csv(temporary, index=False, lineterminator="\n")
    write_text(out / f"{name}.md", markdown(table.shown, note))
    write_text(out / f"{name}.tex", latex(table.shown, note))
    write_text(out / f"{name}.html", page(item(TABLES, name).title, table.shown, note))


def caption(name: str, collected: Path) -> str:
    """What the table says; study, corpus, seeds, interval, protocol; what is missing."""
    of, c = item(TABLES, name), Collected(collected)
    parts = [of.caption, c.about()]
    if name not in OF_ITS_OWN:
        parts += [c.seeds(), f"Means over seeds. {c.interval()}"]
    parts += c.scored(of.reads)
    if "throughput" in of.reads:
        parts += [c.machine(), c.untimed()]
    parts += c.apart()
    return " ".join(part for part in parts if part)
