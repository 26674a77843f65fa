"""The verbs that users type: what would it cost, how far is it, what lies there, what differs.

They read the config as Snakemake does: ./config.yaml, and `--configfile studies/demo.yaml` over it.
"""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from blindspot.study import Study

app = typer.Typer()

Base = Annotated[Path, typer.Option("--base", help="The study that study files differ from.")]
Files = Annotated[
    list[Path] | None,
    typer.Option("--configfile", help="A study file over it, as for snakemake; may be repeated."),
]
Override = Annotated[str, typer.Option(help="Further settings as JSON, laid over the files.")]
BASE = Path("config.yaml")


def load(base: Path, files: list[Path] | None, override: str) -> Study:
    """The study that these options name."""
    return Study.load(base, files or [], json.loads(override))


@app.command()
def status(base: Base = BASE, configfile: Files = None, override: Override = "{}") -> None:
    """Show every run: waiting, running, interrupted, failed or finished. Safe while it runs."""
    from blindspot.status import status as show

    console().print(show(load(base, configfile, override)))


@app.command("ls")
def listing(base: Base = BASE, configfile: Files = None, override: Override = "{}") -> None:
    """List runs under results/ and work/: age, size, state, and the studies that use them."""
    from blindspot import housekeeping

    study = load(base, configfile, override)
    known = housekeeping.users(study, base)
    console().print(housekeeping.listing(study, known))
    for path, why in known.broken.items():
        console().print(f"{path} can't be read, so what it uses is not known: {why}")


Run = Annotated[str, typer.Argument(metavar="RUN", help="A run's hash or name, or its beginning.")]


@app.command()
def diff(
    one: Run,
    other: Run,
    base: Base = BASE,
    configfile: Files = None,
    override: Override = "{}",
) -> None:
    """Show the keys in which the specifications of two runs differ."""
    from blindspot.housekeeping import compare

    console().print(compare(load(base, configfile, override), one, other))


@app.command()
def gc(
    base: Base = BASE,
    configfile: Files = None,
    override: Override = "{}",
    keep: Annotated[
        list[str] | None,
        typer.Option(help="Further study in use, as files joined by commas; may be repeated."),
    ] = None,
    results: Annotated[
        bool, typer.Option("--results", help="Results in the study's own folder too.")
    ] = False,
    delete: Annotated[bool, typer.Option("--delete", help="Do it; without, only list.")] = False,
) -> None:
    """List what no study uses, with its bytes: states of runs, tokens, corpora. --delete does it.

    In use is what the study at hand, config.yaml or a file in studies/ asks for.
    """
    from blindspot import housekeeping

    study = load(base, configfile, override)
    more = [[Path(name) for name in files.split(",")] for files in keep or ()]
    known = housekeeping.users(study, base, more)
    out = console()
    out.print(housekeeping.collect_garbage(study, known, results, delete))
    for path, why in known.broken.items():
        out.print(f"{path} can't be read, so nothing can be deleted: {why}")
    if not delete:
        out.print("Nothing was deleted; --delete does it.")


def console() -> Console:
    """Wide enough for a table where the output is no terminal."""
    plain = Console()
    return plain if plain.is_terminal else Console(width=160)
