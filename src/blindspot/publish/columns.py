"""`blindspot columns`: docs/columns.md, every column of every CSV, made from the declarations."""

from collections.abc import Iterable

from blindspot.declared import MEASUREMENTS, gathered, tables, throughput, training
from blindspot.declared.columns import COUNT, FLAG, FLOAT, INT, TEXT, Column, File
from blindspot.declared.measurement import Measurement
from blindspot.publish import catalogue

HEAD = """# Every column of every CSV

<!-- Made by `blindspot columns > docs/columns.md`, from src/blindspot/declared/. -->

A run's files lie in `results/<study>/runs/<run>/`: its training log beside `run.json`, each
measurement in `measure/<name>-<hash8>/`, where the hash is that of its revision and of the settings
that it reads. `collect` gathers all runs in `collected/<name>.csv`; there each row begins with

{lead}
A unit of plain ratios, counts and norms is left out. `k` counts loops. Symbols: H_k the state after
loop k, s_k its L2 norm over the width d, u_k = H_k / s_k, K the loops of training.
"""
#: Types as a reader knows them.
TYPES = {
    INT: "integer",
    COUNT: "integer or empty",
    FLOAT: "number",
    TEXT: "text",
    FLAG: "True or False",
}


def text() -> str:
    """The whole page, as Markdown."""
    lead = _columns(gathered.LEAD)
    parts = [HEAD.format(lead=lead), "## Training\n"]
    parts += [_file(file) for file in training.FILES]
    parts += ["## Measurements\n"]
    parts += [_measurement(one) for one in MEASUREMENTS.values()]
    parts += ["## Throughput\n", _file(throughput.THROUGHPUT)]
    parts += ["## What `collect` adds\n", _file(gathered.RUNS), _file(gathered.PROVENANCE)]
    return "\n".join([*parts, _tables()])


def _measurement(one: Measurement) -> str:
    keys = ", ".join(f"`{key}`" for key in one.settings) or "none"
    said = f"Measurement `{one.name}`, revision {one.revision}. Settings: {keys}.\n"
    return "\n".join([f"### {one.title}\n", said, *(_file(file) for file in one.files)])


def _file(file: File) -> str:
    """One file: what a row is, who reads it, its columns."""
    read = [
        f"{kind} `{name}`"
        for kind, items in (("table", catalogue.TABLES), ("figure", catalogue.FIGURES))
        for name, item in items.items()
        if file.name in item.reads
    ]
    head = f"**`{file.csv}`**: one row for {file.row}. {file.note}".rstrip()
    used = f"Read by {', '.join(read)}.\n" if read else ""
    own = [c for c in file.columns if c not in gathered.LEAD]
    return "\n".join([f"{head}\n", *([used] if used else []), _columns(own)])


def _columns(columns: Iterable[Column]) -> str:
    rows = [f"| `{c.name}` | {TYPES[c.type]} | {c.unit} | {_plain(c.meaning)} |" for c in columns]
    return "\n".join(["| column | type | unit | meaning |", "|---|---|---|---|", *rows, ""])


def _tables() -> str:
    rows = [f"| `{name}` | {unit} | {_plain(m)} |" for name, (unit, m) in tables.COLUMNS.items()]
    ends = [f"- `{end}`: {meaning}" for end, meaning in tables.ENDINGS.items()]
    return "\n".join(
        [
            "## Tables\n",
            "A table's CSV has the columns of the collected files that it reads, as means over",
            "seeds, with these endings for what stands around the mean:\n",
            *ends,
            "",
            "and columns of its own:\n",
            "| column | unit | meaning |",
            "|---|---|---|",
            *rows,
            "",
        ]
    )


def _plain(meaning: str) -> str:
    # A bar would end the cell.
    return meaning.replace("|", "\\|")
