"""The rows of docs/reruns.md that train, measure or build, carried out: exactly the jobs of the
table run, once, and what they make is there. (test_workflow_reruns.py plans every row.)"""

import json
import os
import re
import shutil
import time

from blindspot.config.runfiles import RunFiles
from blindspot.declared import MEASUREMENTS
from studies import CORPUS, STUDY, TINY, checkout, lay_out, load, snakemake
from studies import write as write_config

#: One cell, one seed, three steps.
SMALL = TINY | {
    "corpus": CORPUS,
    "cells": {"perloop-rms": None},
    "grid": {"seeds": [1]},
    "training": TINY["training"] | {"steps": 3, "log_every": 1, "validate_every": 3},
}
PENALTY = {"loss": "per-loop", "readout": "rms", "penalty": {"weight": 0.01}}
TWO_CELLS = {"cells": {"perloop-rms": PENALTY, "mine": {"loss": "per-loop", "readout": "raw"}}}
TWO_SEEDS = TWO_CELLS | {"grid": {"seeds": [1, 2]}}
SETTING = {"measurement": {"min_context": 4}}
TIMING = "timing size nano at every depth"


def jobs(said):
    """The jobs that a controller ran, each as the message of its rule, once or more often."""
    messages = re.findall(r"^Job \d+: (.+)$", said, re.MULTILINE)
    return sorted(m for m in messages if not m.startswith(("what `reuse: false`", "all runs")))


class Study:
    """A study whose results and work lie outside its checkout, all of its jobs run in turn."""

    def __init__(self, where):
        self.where = lay_out(where / "checkout")
        self.places = {"work": str(where / "the work"), "results": str(where / "results")}

    def run(self, *config, changes=None, anew=lambda run: False):
        """Run all that is missing with these changes, or named by `reuse` (which `anew` says too),
        but for what is published; the jobs that ran. Snakemake takes no source file as a target."""
        if changes is not None:
            write_config(self.where, SMALL | changes)
        timing = self.plan.results / f"throughput/nano-{self.plan.throughput_hash('nano')}.csv"
        wanted = {self.measured(run): anew(run) for run in self.plan.runs}
        wanted[timing] = all(map(anew, self.plan.runs))
        targets = [str(path) for path, again in wanted.items() if again or not path.exists()]
        done = self.snakemake("runs", *targets, config=config)
        assert done.stdout.count("Building DAG of jobs") == 1
        for run in self.plan.runs:
            assert self.record(run)["hash"] == run.spec.hash
            assert json.loads(self.measured(run).read_text())
        return jobs(done.stdout)

    def snakemake(self, *targets, config=(), **env):
        places = [f"{key}={value}" for key, value in self.places.items()]
        return snakemake(self.where, *targets, *STUDY, "--config", *places, *config, **env)

    @property
    def plan(self):
        return load(self.where, self.places)

    def measured(self, run):
        return RunFiles(self.plan).measured(run.name)

    def record(self, run):
        return json.loads((self.plan.results / "runs" / run.name / "run.json").read_text())

    def data(self):
        plan = self.plan
        return [f"fetching corpus {plan.corpus.name}", f"tokenizing {plan.tokens.name}"]

    def both(self, chosen=lambda run: True):
        names = [run.name for run in self.plan.runs if chosen(run)]
        return [f"{verb} {name}" for verb in ("measuring", "training") for name in names]


def test_rows_that_train_or_build_run_exactly_what_they_say(tmp_path):
    study = Study(tmp_path)
    assert study.run(changes={}) == sorted([*study.data(), TIMING, *study.both()])

    # A cell changed, a cell added; and a server's clock is an hour ahead of this machine's.
    ahead = time.time() + 3600
    for path in (study.plan.tokens / "tokens.json", study.plan.tokens / "index.json"):
        os.utime(path, (ahead, ahead))
    assert study.run(changes=TWO_CELLS) == sorted([TIMING, *study.both()])

    # A seed added, tokens deleted (and the corpus).
    for folder in (study.plan.tokens, study.plan.corpus):
        shutil.rmtree(folder)
    ran = study.run(changes=TWO_SEEDS)
    assert ran == sorted([*study.data(), *study.both(lambda run: run.seed == 2)])

    # A run.json deleted: its measurement is of the same weights. Another's measure.json deleted.
    first, other = study.plan.runs[0], study.plan.runs[1]
    (study.plan.results / "runs" / first.name / "run.json").unlink()
    study.measured(other).unlink()
    assert study.run() == sorted([f"training {first.name}", f"measuring {other.name}"])

    # A measurement setting; the records of finished runs are dated ahead.
    for path in (study.plan.results / "runs").rglob("run.json"):
        os.utime(path, (ahead, ahead))
    ran = study.run(changes=TWO_CELLS | SETTING)
    assert ran == sorted(f"measuring {run.name}" for run in study.plan.runs)

    # Finished runs of one cell made anew; then all.
    then = {run.name: study.record(run)["provenance"]["started"] for run in study.plan.runs}

    def mine(run):
        return run.cell == "mine"

    ran = study.run("reuse={mine: false}", changes=TWO_CELLS | SETTING, anew=mine)
    assert ran == sorted(study.both(mine))
    for run in study.plan.runs:
        started = study.record(run)["provenance"]["started"]
        assert (started > then[run.name]) == (run.cell == "mine")
    ran = study.run("reuse=false", anew=lambda run: True)
    assert ran == sorted([TIMING, *study.both()])
    assert not any((tmp_path / "the work/anew").iterdir())

    # The text of the corpus.
    text = study.where / "train.txt"
    text.write_text(text.read_text().replace("train ", "other "))
    assert study.run(changes=SETTING) == sorted([*study.data(), *study.both()])

    # Both revisions raised, in a checkout whose own code runs. (What this process plans has the
    # old ones, so names are compared without their hashes.)
    checkout(study.where, sources=True)
    sources = study.where / "src/blindspot"
    declared = [sources / "declared" / f"{name}.py" for name in MEASUREMENTS]
    for path in [sources / "config/revisions.py", *declared]:
        revised, count = re.subn(
            r"^(TRAINING_REVISION = |    revision=)", r"\g<1>7", path.read_text(), flags=re.M
        )
        assert count == 1
        path.write_text(revised)
    before = study.both()
    done = study.snakemake("all", "--until", "measure", "throughput", PYTHONPATH="src")
    ran = jobs(done.stdout)
    assert [name[:-8] for name in ran] == sorted(name[:-8] for name in before) and ran != before

    # All of it in the places that were given, and nothing in the checkout but Snakemake's own.
    assert not {"work", "results"} & {path.name for path in study.where.iterdir()}
