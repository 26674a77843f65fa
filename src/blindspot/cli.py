"""The command line: one verb a stage, so that every stage also runs without Snakemake.

Heavy imports happen inside the verbs: `blindspot figure` must work where torch is not installed.
"""

import json
import os
import sys
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Annotated, NoReturn

from blindspot.training import stopping

if sys.argv[1:2] == ["train"]:
    # Before all else: the imports below and torch's take seconds, in which a signal must not kill.
    stopping.install()

import typer

from blindspot.errors import BlindspotError
from blindspot.files import date_no_later
from blindspot.plan import ask
from blindspot.share import ask as share

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="The readout blind spot in looped language models, one stage at a time.",
)

app.add_typer(ask.app)
app.add_typer(share.app)

Spec = Annotated[str, typer.Option(help="Specification as canonical JSON, made by the workflow.")]
RunName = Annotated[str, typer.Option(help="size/cell/seedN-hash, for messages and results.")]
Folder = Annotated[Path, typer.Option()]
Results = Annotated[Path, typer.Option(help="Of the study; the run's go below runs/NAME.")]
Work = Annotated[Path, typer.Option(help="Checkpoints and weights go below runs/NAME.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Threads = Annotated[int, typer.Option(min=1, help="CPU threads.")]
Configs = Annotated[list[Path], typer.Option("--config", help="config.yaml, then study files.")]
Override = Annotated[str, typer.Option(help="Further settings as JSON, laid over the files.")]


class Ranks(StrEnum):
    """`none`: not one of several. `env`: torchrun, or `--gpus`. `slurm`: srun."""

    none = "none"
    env = "env"
    slurm = "slurm"


@app.command()
def corpus(spec: Spec, out: Folder) -> None:
    """Fetch a corpus and write its documents, split. The only step that uses the network."""
    from pydantic import TypeAdapter

    from blindspot.config.dataspec import Corpus
    from blindspot.data import shared
    from blindspot.data.corpus import fetch, read

    wanted = TypeAdapter(Corpus).validate_json(spec)
    shared.make(out, lambda: read(out, wanted), lambda: fetch(wanted, out))


@app.command()
def tokenizer(spec: Spec, out: Folder) -> None:
    """Fetch a tokenizer from the hub, as a file. Uses the network."""
    from pydantic import TypeAdapter

    from blindspot.config.dataspec import Gpt2Tokenizer, HubTokenizer
    from blindspot.data import shared
    from blindspot.data.tokenizer import fetch, load

    given: TypeAdapter[HubTokenizer | Gpt2Tokenizer] = TypeAdapter(HubTokenizer | Gpt2Tokenizer)
    wanted = given.validate_json(spec)
    shared.make(out.parent, lambda: load(out), lambda: fetch(wanted, out))


@app.command()
def tokens(
    spec: Spec,
    corpus: Folder,
    out: Folder,
    tokenizer: Annotated[Path | None, typer.Option(help="Of `blindspot tokenizer`.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads; default all.")] = None,
) -> None:
    """Fit the tokenizer, unless one is given, and write token files."""
    from blindspot.config.dataspec import DataSpec
    from blindspot.data import shared
    from blindspot.data.tokens import Tokens, build

    wanted = DataSpec.model_validate_json(spec)
    shared.make(
        out,
        lambda: Tokens.open(out, verify=False, data=wanted.identity()),
        lambda: build(wanted, corpus, out, tokenizer, threads),
    )


@app.command()
def train(
    spec: Spec,
    name: RunName,
    tokens: Folder,
    results: Results,
    work: Work,
    device: Device = "auto",
    threads: Threads = 1,
    execution: Annotated[str, typer.Option(help="Settings of execution as JSON.")] = "{}",
    gpus: Annotated[int, typer.Option(min=0, help="Ranks to start here; 0 or 1: none.")] = 0,
    ranks: Annotated[
        Ranks, typer.Option(help="Who started this process as one of several ranks.")
    ] = Ranks.none,
) -> None:
    """Train one run, or go on with it where it was interrupted."""
    if gpus > 1 and ranks == Ranks.none:
        from blindspot.training.parallel import launch

        raise typer.Exit(launch(gpus))
    from blindspot.config.execution import Execution
    from blindspot.config.spec import RunSpec
    from blindspot.training.job import Job
    from blindspot.training.train import train as train_run

    date_no_later([tokens / "tokens.json"])
    how = Execution.model_validate_json(execution)
    out, state = results / "runs" / name, work / "runs" / name
    parsed = RunSpec.parse(spec)
    job = Job(name, parsed, tokens, out, state, device, threads, how, ranks=ranks.value)
    job.tracking = work / "tracking"
    train_run(job)


@app.command()
def measure(
    spec: Spec,
    settings: Annotated[str, typer.Option(help="Measurement settings as JSON.")],
    name: RunName,
    tokens: Folder,
    results: Results,
    work: Work,
    device: Device = "auto",
    threads: Threads = 1,
) -> None:
    """Make what is missing of the measurements of a trained run."""
    from blindspot.config.spec import Measurement, RunSpec
    from blindspot.measure.run import Job
    from blindspot.measure.run import measure as measure_run

    date_no_later([tokens / "tokens.json"])
    chosen = Measurement.model_validate_json(settings)
    state = work / "runs" / name
    out = results / "runs" / name / "measure"
    measure_run(Job(name, RunSpec.parse(spec), chosen, tokens, state, out, device, threads))


@app.command()
def throughput(
    spec: Annotated[str, typer.Option(help="Architectures, settings, precision as JSON.")],
    out: Folder,
    device: Device = "auto",
    threads: Threads = 1,
) -> None:
    """Time a forward pass at every depth for all architectures of a size, in turn."""
    from blindspot.measure.throughput import write

    write(json.loads(spec), out, device, threads)


@app.command()
def collect(
    config: Configs,
    out: Folder,
    override: Override = "{}",
    work: Annotated[str | None, typer.Option(help="The study's `work`, if overridden.")] = None,
) -> None:
    """Gather the results of a study into tidy CSVs."""
    from blindspot.collect.collect import collect as gather
    from blindspot.config.study import Study
    from blindspot.config.yamltext import from_json
    from blindspot.measure.migrate import migrate

    places = {} if work is None else {"work": work}
    study = Study.load(config[0], config[1:], from_json(override, "--override") | places)
    migrate(study)
    gather(study, out)


@app.command()
def table(name: str, collected: Folder, out: Folder) -> None:
    """Write one table as CSV, Markdown and LaTeX."""
    from blindspot.publish.tables import write

    write(name, collected, out)


@app.command()
def figure(name: str, collected: Folder, out: Folder) -> None:
    """Draw one figure as PDF and PNG."""
    from blindspot.publish.figures import draw

    draw(name, collected, out)


@app.command()
def claims(collected: Folder, out: Folder) -> None:
    """Judge each claim of the paper by what the study measured."""
    from blindspot.publish.claims import write

    write(collected, out)


@app.command()
def summary(results: Folder) -> None:
    """Print what a study showed: drift, and what depth buys."""
    from blindspot.publish.summary import summary as summarize

    print(summarize(results))


@app.command()
def doctor(
    config: Configs,
    override: Override = "{}",
    resources: Annotated[str, typer.Option(help="What a training asks for, as JSON.")] = "{}",
    folder: Annotated[Path, typer.Option(help="submitit-folder.")] = Path("work/submitit"),
    latency: Annotated[float, typer.Option(help="latency-wait of the profile, seconds.")] = 120,
) -> None:
    """Check a Slurm cluster with one tiny job, and say what to change."""
    from blindspot.config.study import Study
    from blindspot.config.yamltext import from_json
    from blindspot.plan.doctor import Doctor, examine

    study = Study.load(config[0], config[1:], from_json(override, "--override"))
    examine(Doctor(study, json.loads(resources), folder=folder, latency=latency))


@app.command()
def readme(
    results: Folder,
    command: Annotated[str, typer.Option(help="What draws everything again, to be shown.")],
) -> None:
    """Write RESULTS/README.md for a repository browser, and the page that its report opens on."""
    from blindspot.publish.showcase import write

    write(results, command)


@app.command()
def audit(
    model: Annotated[str, typer.Argument(help="A run, a Hugging Face model, or FILE.py:FUNCTION.")],
    text: Annotated[Path | None, typer.Option(help="UTF-8 text; default: an excerpt.")] = None,
    out: Annotated[Path, typer.Option(help="Results go below it, by name.")] = Path("audit"),
    quick: Annotated[bool, typer.Option("--quick", help="Three factors, 128 tokens.")] = False,
    tokens: Annotated[int | None, typer.Option(min=2, help="Tokens to read.")] = None,
    length: Annotated[int | None, typer.Option(min=8, help="Tokens of a window.")] = None,
    loops: Annotated[int | None, typer.Option(help="Trained loops, if not as configured.")] = None,
    beyond: Annotated[int | None, typer.Option(min=0, help="Loops beyond these.")] = None,
    device: Device = "auto",
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16, float16, float64.")] = "auto",
    tokenizer: Annotated[Path | None, typer.Option(help="A tokenizer.json.")] = None,
    results: Annotated[Path, typer.Option(help="Where runs' records are.")] = Path("results"),
    work: Annotated[Path, typer.Option(help="Where runs' weights are.")] = Path("work"),
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run Python code that comes with a model.")
    ] = False,
) -> None:
    """Look for the blind spot in a looped model: a verdict, numbers and a page."""
    from blindspot.audit.command import run, settings
    from blindspot.audit.options import Options

    where = Options(text, tokenizer, results, work, device, dtype, loops, trust_remote_code)
    run(model, where, settings(quick, tokens, length, beyond), out)


@app.command()
def export(
    run: Annotated[str, typer.Argument(help="size/cell/seedN-hash of a finished run.")],
    folder: Annotated[Path, typer.Argument(help="New folder of the Hugging Face model.")],
    results: Annotated[Path, typer.Option(help="Where runs' records are.")] = Path("results"),
    work: Annotated[Path, typer.Option(help="Where runs' weights are.")] = Path("work"),
) -> None:
    """Write a run as a model folder that transformers loads, its code and card included."""
    from blindspot.export.export import export as export_run
    from blindspot.measure.finished import Finished

    export_run(Finished(run, results, work), folder)
    print(f"{folder}: load it with AutoModelForCausalLM.from_pretrained(trust_remote_code=True)")


@app.command()
def columns() -> None:
    """Print what every column of every CSV means, as docs/columns.md has it."""
    from blindspot.publish.columns import text

    print(text(), end="")


@app.command()
def schema() -> None:
    """Print the JSON schema of config.yaml, for editors."""
    from blindspot.config.schema import Config

    print(json.dumps(Config.model_json_schema(), indent=2))


def main() -> None:
    """Run the command line; a user's fault is one message and an exit code, no traceback."""
    # A notebook sets a backend that is only there, and matplotlib refuses to be imported with it.
    os.environ["MPLBACKEND"] = "agg"
    try:
        app()
    except SystemExit as end:
        if isinstance(end.code, int | None):
            _leave(end.code or 0)
        raise
    except BlindspotError as error:
        with suppress(OSError, ValueError):
            print(f"error: {error}", file=sys.stderr, flush=True)
        _leave(error.exit_code)


def _leave(code: int) -> NoReturn:
    """End at once where torch was used: taking it apart takes most of a second of a job, a process
    group's threads may abort it, which is another exit code, and the compiler's wait for ever.

    Who writes in a thread waits for it before this (`Trainer.run` for its checkpoint).
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # nobody reads any more
            stream.flush()
    if "torch" in sys.modules:
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    main()
