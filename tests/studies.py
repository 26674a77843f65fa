"""Tiny studies for tests of the workflow: checkouts, one finished study, and plans to compare."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import yaml

from blindspot.config.study import Study
from toys import ROOT

TINY = {
    "study": "tiny",
    "device": "cpu",
    "tokenizer": {"kind": "bpe", "vocab_size": 300},
    "windows": {"length": 16, "stride": 8},
    "sizes": {"nano": {"d_model": 16, "layers": 1, "heads": 2, "batch": 4}},
    "cells": {"terminal-rms": None, "perloop-rms": None, "perloop-raw": None},
    "grid": {"seeds": [1, 2]},
    "model": {"loops": 2, "dropout": {"rate": 0.1, "at": ["embedding", "residual"]}},
    "training": {
        "epochs": None,
        "steps": 30,
        "learning_rate": 3.0e-3,
        "precision": "float32",
        "log_every": 10,
        "validate_every": 10,
        "validation_windows": 8,
    },
    "measurement": {"min_context": 8},
    "throughput": {"batch": 2, "warmup": 1, "repeats": 3},
}
STUDY = ("--configfile", "tiny.yaml")


def command(*arguments: str) -> list[str]:
    # -p: every job as Snakemake itself tells it.
    return [sys.executable, "-m", "snakemake", "--cores", "2", "-p", *arguments]


def environment(where: Path, **more: str) -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(where / ".cache")} | more


def snakemake(where, *arguments, check=True, **env):
    """Run Snakemake as a user would; its exit code and output."""
    done = subprocess.run(
        command(*arguments),
        cwd=where,
        env=environment(where, **env),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=900,
    )
    if check:
        assert done.returncode == 0, done.stdout[-6000:]
    return done


def checkout(where, sources=False):
    """A copy of the files under version control, as a fresh clone has them. `sources` makes the
    copy's own code run, for those who give `PYTHONPATH=src`."""
    names = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    for name in names:
        if name.startswith(("tests/", "results/")) or (name.startswith("src/") and not sources):
            continue
        if (ROOT / name).is_file():
            target = where / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, target)
    return where


def lay_out(where, **changes):
    """A checkout with the tiny study, changed, on words of this project's licence."""
    checkout(where)
    words = (ROOT / "LICENSE").read_text().split()
    rng = np.random.default_rng(0)
    for split, n in (("train", 3000), ("validation", 400), ("test", 300)):
        (where / f"{split}.txt").write_text(f"{split} " + " ".join(rng.choice(words, n)))
    write(where, TINY | {"corpus": CORPUS} | changes)
    return where


CORPUS = {"kind": "local"} | {s: f"{s}.txt" for s in ("train", "validation", "test")}


def write(where, values):
    (where / "tiny.yaml").write_text(yaml.safe_dump(values, sort_keys=False))


def finished(tmp_path_factory):
    """The finished tiny study and what its controller said; made once for all workers of a test
    session. Never change it: take a `copy`."""
    base = tmp_path_factory.getbasetemp()
    base = base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base
    where, said = base / "finished-study", base / "finished-study.log"
    with open(base / "finished-study.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not said.exists():
            shutil.rmtree(where, ignore_errors=True)
            where.mkdir()
            said.write_text(snakemake(lay_out(where), "all", *STUDY).stdout)
    return where, said.read_text()


def copy(where, to, *names):
    """A copy with its times, as `cp -a` makes it; of some names only, if given."""
    for name in names or [p.name for p in where.iterdir()]:
        if (where / name).is_dir():
            shutil.copytree(where / name, to / name, symlinks=True)
        else:
            to.mkdir(exist_ok=True)
            shutil.copy2(where / name, to / name)
    return to


def load(where, *extra):
    """The study as the workflow sees it."""
    here = Path.cwd()
    os.chdir(where)
    try:
        return Study.load(Path("config.yaml"), [Path("tiny.yaml")], *extra)
    finally:
        os.chdir(here)


def planned(where, *arguments, **env):
    """The jobs of a dry run, each as the message of its rule; and what the dry run said."""
    said = snakemake(where, "-n", *(arguments or ("all",)), *STUDY, **env).stdout
    jobs = re.findall(r"^Job \d+: (.+)$", said, flags=re.MULTILINE)
    total = re.search(r"^total +(\d+)$", said, flags=re.MULTILINE)
    # Every job has a message of its own; a target's says that all of something is there.
    jobs = [job for job in jobs if not re.fullmatch("all .* (is|are) there", job)]
    targets = re.findall(r"^(?:all|runs|tables|figures) +1$", said, flags=re.MULTILINE)
    assert len(set(jobs)) == (int(total[1]) - len(targets) // 2 if total else 0), said[-4000:]
    return set(jobs), said
