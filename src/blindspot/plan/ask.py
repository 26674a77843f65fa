"""The verbs that users type: what would it cost, how far is it, what lies there, what differs.

They read the config as Snakemake does: ./config.yaml, and `--configfile studies/demo.yaml` over it.
"""

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from blindspot import provenance
from blindspot.config.study import Study
from blindspot.config.yamltext import from_json

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
    return Study.load(base, files or [], from_json(override, "--override"))


@app.command()
def status(base: Base = BASE, configfile: Files = None, override: Override = "{}") -> None:
    """Show every run: waiting, running, interrupted, failed or finished. Safe while it runs."""
    from blindspot.plan.status import status as show

    console().print(show(load(base, configfile, override)))


CORES = provenance.cores()
Threads = Annotated[int, typer.Option(min=1, help="CPU threads of each training.")]
Cores = Annotated[int, typer.Option(min=1, help="Trainings at once, where the CPU is used.")]


@app.command()
def forecast(
    base: Base = BASE,
    configfile: Files = None,
    override: Override = "{}",
    cores: Cores = CORES,
) -> None:
    """Say what would run and why, its FLOPs, hours and price; writes results/STUDY/forecast.csv.

    Hours rest on a short calibration of this machine, which is kept, or on recorded runs.
    """
    from blindspot.plan.forecast import Forecast

    study = load(base, configfile, override)
    found = Forecast(study, cores)
    if found.wants_calibration():
        typer.echo(
            "Calibrating this machine, once (some seconds a shape; longer where it is busy) ...",
            err=True,
        )
        options = ["--base", str(base), "--override", override, "--cores", str(cores)]
        options += [word for path in configfile or () for word in ("--configfile", str(path))]
        # Another process: torch stays out of this one, and may fail in its own way.
        code = "from blindspot.cli import main; main()"
        if subprocess.run([sys.executable, "-c", code, "calibrate", *options]).returncode:
            typer.echo("It failed; going on without.", err=True)
        found = Forecast(study, cores)
    rows = found.rows()
    console().print(found.render(rows))
    console().print(f"Written to {found.write(rows)}.")


@app.command()
def calibrate(
    base: Base = BASE,
    configfile: Files = None,
    override: Override = "{}",
    cores: Cores = CORES,
    threads: Threads = 1,
) -> None:
    """Time a few optimizer steps of each shape of a study on this machine, for the forecast."""
    from blindspot.plan.calibrate import calibrate as run

    typer.echo(run(load(base, configfile, override), threads, cores))


@app.command("ls")
def listing(base: Base = BASE, configfile: Files = None, override: Override = "{}") -> None:
    """List runs under results/ and work/: age, size, state, and the studies that use them."""
    from blindspot.plan import housekeeping

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
    from blindspot.plan.housekeeping import compare

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
    from blindspot.plan import housekeeping

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
    """Wide enough for a table where the output is no terminal, whatever FORCE_COLOR says."""
    return Console() if sys.stdout.isatty() else Console(width=160)
