# The study, and what the rules ask of it. No rules here.

import json
import os
import re
import shlex
import shutil
import sys
from collections import Counter
from functools import cache
from pathlib import Path

from snakemake.exceptions import WorkflowError

try:
    from blindspot import catalogue, controller, provenance, remake
    from blindspot.errors import BlindspotError
    from blindspot.spec import canonical, digest
    from blindspot.study import Study, typed
    from blindspot.summary import summary
except ImportError as error:
    raise WorkflowError(
        f"{error}: blindspot is not installed for {sys.executable}; run `make env`, then "
        f"use .venv/bin/snakemake"
    ) from None

# Jobs must find the `blindspot` of the environment that runs this, activated or not.
os.environ.update(PATH=os.pathsep.join([str(Path(sys.executable).parent), *os.get_exec_path()]))

BASE = Path(os.path.relpath(Path(workflow.basedir) / "config.yaml"))
OVERLAYS = [Path(os.path.relpath(p)) for p in workflow.config_settings.configfiles]
OVERRIDE = typed(workflow.config_settings.config)

# No `configfile:` directive: Snakemake would merge a study's cells into the base's seven. The rule
# here is blindspot's own (see study.py), with the same --configfile and --config.
try:
    study = Study.load(BASE, OVERLAYS, OVERRIDE)
except BlindspotError as error:
    # The message alone: Snakemake would put a trace through these rules around it.
    sys.exit(f"error: {error}")

# These decide what is made and where, never what it is: nothing is stale because they changed.
for key in ("reuse", "runs", "work", "device"):
    OVERRIDE.pop(key, None)

RESULTS = study.results.as_posix()
WORK = study.work.as_posix()
RUNS = {run.name: run for run in study.runs}
CPUS = workflow.resource_settings.cores or 1
CONFIG_ARGUMENTS = " ".join(f"--config {path}" for path in [BASE, *OVERLAYS])
REPORT_ARGUMENTS = " ".join(
    [f"--snakefile {os.path.relpath(workflow.main_snakefile)}"]
    + ([f"--configfile {' '.join(map(str, OVERLAYS))}"] if OVERLAYS else [])
    + (["--config"] if OVERRIDE else [])
    + [shlex.quote(f"{key}={canonical(value)}") for key, value in OVERRIDE.items()]
)
#: Targets that only publish what is there: whatever is missing, they never train.
PUBLISHING = {"figures", "tables", "claims", "readme", "report", "collect"}
#: Targets that answer a question and make nothing.
ASKING = {"forecast", "status"}
ASK_ARGUMENTS = shlex.join(
    ["--base", str(BASE)]
    + [word for path in OVERLAYS for word in ("--configfile", str(path))]
    # All of it: `reuse` changes what would run.
    + ["--override", canonical(typed(workflow.config_settings.config))]
)
#: What this study can show; some items need conditions that not every study has.
TABLES = {name: t for name, t in catalogue.TABLES.items() if t.when(study.config)}
FIGURES = {name: f for name, f in catalogue.FIGURES.items() if f.when(study.config)}


def pending(path: Path) -> bool:
    """Whether a rule may make this file. Finished results are source files to Snakemake, so neither
    a clock nor a lost record can remake them. Jobs on other nodes skip the look: they were sent to
    make exactly this file."""
    return not (workflow.is_main_process and path.exists())


def only(names) -> str:
    """A wildcard constraint that matches these names, or nothing at all."""
    return "|".join(map(re.escape, names)) or "(?!)"


SEED = "[^/]+/[^/]+/seed[0-9]+-"
RUN = f"{SEED}[0-9a-f]+"


def only_runs(names) -> str:
    """A wildcard constraint that matches these runs. It is kept short, because Snakemake copies it
    into every path: a thousand names in full cost 15 seconds."""
    if len({hash_of(name) for name in RUNS}) < len(RUNS):
        return only(names)
    chosen, others = set(names), RUNS.keys() - set(names)
    fewer = "|".join(sorted(map(hash_of, min(chosen, others, key=len))))
    if len(chosen) <= len(others):
        return f"{SEED}(?:{fewer})" if chosen else only([])
    return f"(?!.*-(?:{fewer})){RUN}" if others else RUN


def hash_of(name: str) -> str:
    return name.rpartition("-")[2]


@cache
def spec_of(name: str) -> str:
    return RUNS[name].spec.canonical()


def sent_off() -> bool:
    """Whether an executor sends jobs elsewhere. Only once the jobs are planned is it known which
    one; a dry run is told no more than that there are --jobs, as in a profile."""
    if workflow.executor_plugin is None or workflow.dryrun:
        return workflow.remote_exec or workflow.resource_settings.nodes is not None
    return workflow.remote_exec or not workflow.local_exec


def device() -> str:
    """The device that jobs are told. Whoever sends jobs off must ask for GPUs before there is one
    to be seen, so there `auto` is a GPU: a job without one says so, and takes no weeks."""
    return "cuda" if study.config.device == "auto" and sent_off() else study.config.device


def gpus(ranks: int = 1) -> int:
    """GPUs that a job of so many ranks asks for."""
    return ranks if device() == "cuda" else 0


def by_device(ask):
    """What follows from `device`: the value itself, because Snakemake plans a thousand runs seconds
    faster without a function of wildcards; or one, where the device depends on the executor."""
    return (lambda wildcards: ask()) if study.config.device == "auto" else ask()


def by_size(ask):
    """What a size says of its runs: the value itself where all sizes agree, or a function of
    wildcards."""
    values = {name: ask(size) for name, size in study.config.sizes.items()}
    if len(set(values.values())) == 1:
        return next(iter(values.values()))
    return lambda wildcards: values[RUNS[wildcards.run].size]


def gpus_of_run():
    """GPUs that the training of a run asks for."""
    if study.config.device != "auto":
        return by_size(lambda size: gpus(size.gpus))
    return lambda wildcards: gpus(study.config.sizes[RUNS[wildcards.run].size].gpus)


def options(**values) -> str:
    """Options of a command line that are the same for all jobs of a rule."""
    return shlex.join(word for key, value in values.items() for word in (f"--{key}", str(value)))


def finished(name: str) -> Path:
    return study.results / "runs" / name / "run.json"


def measured(name: str) -> Path:
    return study.results / "runs" / name / study.config.measurement.folder / "measure.json"


def weights(name: str) -> Path:
    return study.work / "runs" / name / "weights.safetensors"


def throughput_of(size: str) -> Path:
    return study.results / "throughput" / f"{size}-{study.throughput_hash(size)}.csv"


def collected(item) -> list[str]:
    """The collected files that a table or figure is a function of."""
    return [f"{RESULTS}/collected/{name}" for name in item.inputs()]


def describe(item) -> str:
    """The caption of a table or figure in the report."""
    c = study.config
    shown = set(wanted())
    missing = [name for name in RUNS if name not in shown]
    return " ".join(
        [
            f"{item.title}. {item.caption}",
            f"Study {c.study}, corpus {c.corpus.label}, sizes {', '.join(c.sizes)},",
            f"seeds {', '.join(map(str, c.grid.seeds))}, K = {c.model.loops}.",
            f"Not shown, since not finished: {', '.join(missing)}." if missing else "",
        ]
    )


def caption(kind, items, name):
    """What stands beside a table or figure in the report. Only when Snakemake makes its report are
    the results there that the whole caption speaks of."""
    if any(word.startswith("--report") for word in sys.argv):
        from blindspot import showcase  # pandas: not at parse time

        return showcase.caption(kind, name, study.results / "collected")
    return describe(items[name])


#: The code behind what is published, below src/blindspot/. Drawing is cheap, so here any change
#: counts; what trains and measures has revisions instead.
SOURCES = {
    "collect": ("collect*.py", "records.py", "sources.py", "probes.py", "flops.py"),
    "table": ("tables/*.py", "typeset.py", "stats.py", "matched.py", "collected.py"),
    "figure": ("figures/*.py", "style.py", "stats.py", "matched.py", "collected.py"),
    "claims": ("claims.*", "quantities.py", "stats.py", "collected.py"),
}


@cache
def code_of(rule: str) -> str:
    """The digest of the code that a publishing rule runs; a param of it."""
    package = Path(catalogue.__file__).parent
    return digest([p.read_text() for name in SOURCES[rule] for p in sorted(package.glob(name))])


#: Finished or not, these are made anew (`reuse: false`).
REMADE = {run.name for run in study.remade}
#: No file has this name. Snakemake takes a file whose rule lacks an input for a source file, so
#: with this input a rule makes nothing.
NEVER = "(figures, tables, claims, report and runs: finished train and measure nothing)"


def impossible() -> list[str]:
    """Runs that have results but neither a measurement nor the weights to make one."""
    return [
        name
        for name in RUNS
        if name not in REMADE
        and finished(name).exists()
        and not measured(name).exists()
        and not weights(name).exists()
    ]


def publishing() -> bool:
    """Whether only what is there is wanted: `runs: finished`, or targets that publish. Snakemake
    knows its targets only once the rules are read, so this is asked from input functions."""
    targets = set(workflow.dag_settings.targets)
    results = {t for t in targets if t.startswith(f"{RESULTS}/") and "/runs/" not in t}
    return study.config.runs == "finished" or bool(targets and targets <= PUBLISHING | results)


@cache
def wanted() -> list[str]:
    """Runs that tables and figures are made of."""
    plan()
    if publishing():
        return [n for n in RUNS if finished(n).exists() and measured(n).exists()]
    left_out = set(impossible())
    return [n for n in RUNS if n not in left_out]


def timed() -> list[str]:
    """Sizes whose throughput is shown."""
    return [s for s in study.config.sizes if not publishing() or throughput_of(s).exists()]


def unless_publishing(*paths):
    """The input of a rule that trains or measures. Where finished runs are made anew, publishing
    targets must hold it back; elsewhere plain paths do, which Snakemake plans faster."""
    if not REMADE:
        return list(paths)
    return lambda wildcards: NEVER if publishing() else [p.format_map(wildcards) for p in paths]


wildcard_constraints:
    run=only_runs(RUNS),
    size=only(study.config.sizes),
    table=only(TABLES),
    figure=only(FIGURES),
