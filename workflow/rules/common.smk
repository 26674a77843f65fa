# The study, and what the rules ask of it. No rules here.

import os
import shlex
import shutil
import sys
from collections import Counter
from functools import cache
from pathlib import Path

from snakemake.exceptions import WorkflowError

try:
    from blindspot import provenance
    from blindspot.config.runfiles import RunFiles
    from blindspot.config.spec import canonical, digest
    from blindspot.config.study import Study
    from blindspot.config.yamltext import command_line
    from blindspot.errors import BlindspotError
    from blindspot.publish import catalogue
    from blindspot.publish.summary import summary
    from blindspot.training import remake
    from blindspot.workflow import arguments, controller, sourcecode
    from blindspot.workflow.arguments import options
    from blindspot.workflow.wildcards import only, only_runs
except ImportError as error:
    raise WorkflowError(
        f"{error}: blindspot is not installed for {sys.executable}; run `make env`, then "
        f"use .venv/bin/snakemake"
    ) from None

# Jobs must find the `blindspot` of the environment that runs this, activated or not.
os.environ.update(PATH=os.pathsep.join([str(Path(sys.executable).parent), *os.get_exec_path()]))

BASE = Path(os.path.relpath(Path(workflow.basedir) / "config.yaml"))
OVERLAYS = [Path(os.path.relpath(p)) for p in workflow.config_settings.configfiles]

# No `configfile:` directive: Snakemake would merge a study's cells into the base's seven. The rule
# here is blindspot's own (see study.py), with the same --configfile and --config; the latter is read
# from the words as they were typed, because Snakemake's reading of them differs from that of files.
try:
    sourcecode.refuse_other_checkout(Path(workflow.basedir))
    if workflow.is_main_process:
        arguments.refuse_second_config(sys.argv)
    GIVEN = command_line(workflow.config_settings.config_args)
    OVERRIDE = dict(GIVEN)
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
FILES = RunFiles(study)
finished, measured, throughput_of = FILES.finished, FILES.measured, FILES.throughput
CPUS = workflow.resource_settings.cores or 1
CONFIG_ARGUMENTS = arguments.configs([BASE, *OVERLAYS])
REPORT_ARGUMENTS = arguments.snakemake(
    Path(os.path.relpath(workflow.main_snakefile)), OVERLAYS, OVERRIDE
)
# `reuse` changes what would run, so all of it.
ASK_ARGUMENTS = arguments.asked(BASE, OVERLAYS, GIVEN)
#: Targets that only publish what is there: whatever is missing, they never train.
PUBLISHING = {"figures", "tables", "claims", "readme", "report", "collect"}
#: Targets that answer a question and make nothing.
ASKING = {"forecast", "status"}
#: What this study can show; some items need conditions that not every study has.
TABLES = {name: t for name, t in catalogue.TABLES.items() if t.when(study.config)}
FIGURES = {name: f for name, f in catalogue.FIGURES.items() if f.when(study.config)}


def pending(path: Path) -> bool:
    """Whether a rule may make this file. Finished results are source files to Snakemake, so neither
    a clock nor a lost record can remake them. Jobs on other nodes skip the look: they were sent to
    make exactly this file."""
    return not (workflow.is_main_process and path.exists())


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


def largest():
    """What the training that asks for most asks for."""
    size = max(study.config.sizes.values(), key=lambda size: (size.gpus, size.nodes))
    return {"gpu": gpus(size.gpus), "nodes": size.nodes}


def collected(item) -> list[str]:
    """The collected files that a table or figure is a function of."""
    return [f"{RESULTS}/collected/{name}" for name in item.inputs()]


def caption(kind, items, name):
    """What stands beside a table or figure in the report. Only when Snakemake makes its report are
    the results there that the whole caption speaks of."""
    if any(word.startswith("--report") for word in sys.argv):
        from blindspot.publish import showcase  # pandas: not at parse time

        return showcase.caption(kind, name, study.results / "collected")
    missing = RUNS.keys() - set(wanted())
    return items[name].described(study.config, [run for run in RUNS if run in missing])


#: Finished or not, these are made anew (`reuse: false`).
REMADE = {run.name for run in study.remade}
#: No file has this name. Snakemake takes a file whose rule lacks an input for a source file, so
#: with this input a rule makes nothing.
NEVER = "(figures, tables, claims, report and runs: finished train and measure nothing)"


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
        return FILES.published()
    left_out = set(FILES.impossible(REMADE))
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
    run=only_runs(RUNS, RUNS),
    size=only(study.config.sizes),
    table=only(TABLES),
    figure=only(FIGURES),
