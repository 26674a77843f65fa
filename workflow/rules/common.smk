# The study, and what the rules ask of it. No rules here.

import os
import shlex
import shutil
import sys
import time
from collections import Counter
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from snakemake.exceptions import WorkflowError

try:
    from blindspot import files, locks, provenance
    from blindspot.config.module import from_module
    from blindspot.config.runfiles import RunFiles
    from blindspot.config.study import Study
    from blindspot.config.yamltext import command_line
    from blindspot.declared import MEASUREMENTS
    from blindspot.errors import BlindspotError, LockedError
    from blindspot.measure.migrate import migrate, retract
    from blindspot.publish import catalogue
    from blindspot.settings import canonical, digest
    from blindspot.training import remake
    from blindspot.workflow import arguments, sourcecode, stopping
    from blindspot.workflow.arguments import options
    from blindspot.workflow.invocation import Invocation
    from blindspot.workflow.wildcards import only, only_runs
except ImportError as error:
    raise WorkflowError(
        f"{error}: blindspot is not installed for {sys.executable}; run `make env`, then "
        f"use .venv/bin/snakemake"
    ) from None

# Jobs must find the `blindspot` of the environment that runs this, activated or not.
os.environ.update(PATH=os.pathsep.join([str(Path(sys.executable).parent), *os.get_exec_path()]))

call = Invocation(workflow)
BASE = call.source("../../config.yaml")
OVERLAYS = [] if call.is_module else call.configfiles

# A module's study is what its user hands over as `config`, which Snakemake has read and merged.
# Else no `configfile:` directive: Snakemake would merge a study's cells into the base's seven. The
# rule here is blindspot's own (config/overlays.py), with the same --configfile and --config; the
# latter is read from the words as they were typed, because Snakemake's reading of them differs from
# that of files.
try:
    sourcecode.refuse_other_checkout(BASE.parent)
    if call.is_main:
        arguments.refuse_second_config(sys.argv)
        arguments.refuse_unwritable(Path(".snakemake"))
    TYPED = command_line(call.config)
    GIVEN = from_module(call.module_config, TYPED) if call.is_module else TYPED
    OVERRIDE = dict(GIVEN)
    study = Study.load(BASE, OVERLAYS, OVERRIDE)
except BlindspotError as error:
    # The message alone: Snakemake would put a trace through these rules around it.
    sys.exit(f"error: {error}")

# What was measured by an earlier version is laid out as today, and where a measurement was lost the
# file that says that all are there is untrue (measure/migrate.py).
if call.is_main:
    if count := migrate(study):
        logger.info(f"{count} measurements of an earlier version are reused")
    retract(study)

# These decide what is made and where, never what it is: nothing is stale because they changed.
for key in ("reuse", "runs", "work", "device"):
    OVERRIDE.pop(key, None)

RESULTS = study.results.as_posix()
WORK = study.work.as_posix()
#: This study in this place, where studies and clones share a work folder.
HERE = f"{study.config.study}-{digest(str(study.results.resolve()))}"
RUNS = {run.name: run for run in study.runs}
FILES = RunFiles(study)
finished, measured, throughput_of = FILES.finished, FILES.measured, FILES.throughput
CPUS = call.cores
CONFIG_ARGUMENTS = arguments.configs([BASE, *OVERLAYS])
REPORT_ARGUMENTS = arguments.snakemake(
    call.snakefile,
    call.configfiles,
    # A module's user reads the config files again, and says there where `work` is.
    TYPED if call.is_module else OVERRIDE | {"work": WORK},
)
# `reuse` changes what would run, so all of it.
ASK_ARGUMENTS = arguments.asked(BASE, OVERLAYS, GIVEN)
#: Targets that only publish what is there: whatever is missing, they never train.
PUBLISHING = {
    call.named(rule) for rule in ("figures", "tables", "claims", "readme", "report", "collect")
}
#: Targets that answer a question and make nothing.
ASKING = {call.named(rule) for rule in ("forecast", "status", "doctor")}
#: What this study can show; some items need conditions that not every study has.
TABLES = catalogue.of(catalogue.TABLES, study.config)
FIGURES = catalogue.of(catalogue.FIGURES, study.config)


def pending(path: Path) -> bool:
    """Whether a rule may make this file. Finished results are source files to Snakemake, so neither
    a clock nor a lost record can remake them. Jobs on other nodes skip the look: they were sent to
    make exactly this file."""
    return not (call.is_main and path.exists())


def shared(made: Path) -> str:
    """Data that studies share: the file itself where it is there, and then a source file. Else a
    link to it, which a job of this study makes: were the file its output, Snakemake would delete it
    under another study when this job fails."""
    return str(made if made.exists() else made.with_name(f"for-{HERE}"))


@cache
def unmeasured(name: str) -> bool:
    """Whether a rule may measure this run; see `pending`."""
    return not (call.is_main and FILES.is_measured(name))


@cache
def spec_of(name: str) -> str:
    return RUNS[name].spec.canonical()


def device() -> str:
    """The device that jobs are told. Whoever sends jobs off must ask for GPUs before there is one
    to be seen, so there `auto` is a GPU: a job without one says so, and takes no weeks."""
    return "cuda" if study.config.device == "auto" and call.sends_jobs else study.config.device


def gpus(ranks: int = 1) -> int:
    """GPUs that a job of so many ranks asks for."""
    return ranks if device() == "cuda" else 0


def size_of(wildcards):
    """The size of a run: its batch, and the devices and nodes that train it."""
    return study.config.sizes[RUNS[wildcards.run].size]


def largest_training() -> dict[str, int]:
    """What the training that asks for most asks for."""
    size = max(study.config.sizes.values(), key=lambda size: (size.gpus, size.nodes))
    return {"gpu": gpus(size.gpus), "nodes": size.nodes}


def collected(item) -> list[str]:
    """The collected files that a table or figure is a function of."""
    return [f"{RESULTS}/collected/{name}" for name in item.inputs()]


def caption(kind, items, name):
    """What stands beside a table or figure in the report. Only when Snakemake makes its report, and
    runs nothing, are the results there that the whole caption speaks of."""
    if not call.runs and (study.results / "collected" / "study.json").exists():
        from blindspot.publish import showcase  # pandas: not at parse time

        return showcase.caption(kind, name, study.results / "collected")
    missing = RUNS.keys() - set(wanted())
    return items[name].described(study.config, [run for run in RUNS if run in missing])


def labels(kind, item, raw=False):
    """How the report's list names a table or figure, and its CSV. Of two values, as often each,
    Snakemake makes a switch, which begins at the first of the alphabet."""
    return {"title": f"{kind}: {item.title}", "shown as": "numbers (CSV)" if raw else "a page"}


#: Runs that `reuse: false` names: finished or not, they are made anew.
REMADE = {run.name for run in study.remade}
#: A mark that each start makes once, under a name of its own, where it makes runs anew. What has it
#: as an input runs again, whatever is there.
ANEW = f"{WORK}/anew/{HERE}-{os.getpid()}-{time.time_ns()}"


def publishing() -> bool:
    """Whether only what is there is wanted: `runs: finished`, or targets that publish. Snakemake
    knows its targets only once the rules are read, so this is asked from input functions."""
    results = {t for t in call.targets if t.startswith(f"{RESULTS}/") and "/runs/" not in t}
    asked = bool(call.targets) and call.targets <= PUBLISHING | results
    return study.config.runs == "finished" or asked


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


def remaking() -> list[str]:
    """The mark of this start, for the targets that train."""
    return [ANEW] if REMADE and not publishing() else []


def made_anew(named) -> list:
    """What `reuse: false` adds to the input of rules that train or measure: the mark of this start,
    if what the wildcards say is `named`. Where only what is there is published, a file that nothing
    makes: Snakemake then takes the rule's output for a source file."""
    if not (REMADE and call.is_main):
        return []
    nothing = "(only what is there is published)"
    return [lambda wildcards: nothing if publishing() else [ANEW] if named(wildcards) else []]


wildcard_constraints:
    run=only_runs(RUNS, RUNS),
    size=only(study.config.sizes),
    table=only(TABLES),
    figure=only(FIGURES),
