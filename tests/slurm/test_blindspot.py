"""blindspot itself on Slurm: a small study from corpus to report, preempted on its way."""

import csv
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml
from cluster import NODES, Cluster, until

from blindspot import tensorfile
from blindspot.config.runfiles import WEIGHTS
from blindspot.config.study import Run, Study
from toys import ROOT

TINY = {
    "study": "tiny",
    "device": "cpu",
    "corpus": {"kind": "local"} | {s: f"{s}.txt" for s in ("train", "validation", "test")},
    "tokenizer": {"kind": "bpe", "vocab_size": 300},
    "windows": {"length": 16, "stride": 8},
    "sizes": {"nano": {"d_model": 16, "layers": 1, "heads": 2, "batch": 4}},
    "cells": {"terminal-rms": None, "perloop-rms": None},
    "grid": {"seeds": [1]},
    "model": {"loops": 2, "dropout": {"rate": 0.1, "at": ["embedding", "residual"]}},
    "training": {
        "epochs": None,
        "steps": 3000,
        "precision": "float32",
        "log_every": 500,
        "validate_every": 1500,
        "validation_windows": 8,
    },
    "measurement": {"min_context": 8},
    "throughput": {"batch": 2, "warmup": 1, "repeats": 3},
}


def blindspot(*arguments: object) -> None:
    code = "from blindspot.cli import main; main()"
    command = [sys.executable, "-c", code, *map(str, arguments)]
    subprocess.run(command, check=True, capture_output=True, timeout=300)


def alone(study: Study, run: Run, out: Path) -> tuple[str, dict[str, torch.Tensor]]:
    """Trajectory and weights of a training that nobody disturbs."""
    given = ["--spec", run.spec.canonical(), "--name", run.name, "--tokens", study.tokens]
    given += ["--results", out, "--work", out / "work", "--device", "cpu", "--threads", 1]
    blindspot("train", *given)
    weights = tensorfile.read(out / "work/runs" / run.name / WEIGHTS).tensors
    return (out / "runs" / run.name / "trajectory.csv").read_text(), weights


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Study]:
    """Makes the current folder that of a small study, whose text is this project's licence."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    words, rng = (ROOT / "LICENSE").read_text().split(), random.Random(0)
    for split, n in (("train", 3000), ("validation", 400), ("test", 300)):
        Path(f"{split}.txt").write_text(f"{split} " + " ".join(rng.choices(words, k=n)))

    def make(**changes: object) -> Study:
        Path("tiny.yaml").write_text(yaml.safe_dump(TINY | changes, sort_keys=False))
        return Study.load(ROOT / "config.yaml", [Path("tiny.yaml")])

    return make


def with_profile(cluster: Cluster, partition: str) -> tuple[list[str], dict[str, str]]:
    """The command line of the small study on Slurm, but for its target; and its environment."""
    env = cluster.env | {"SBATCH_PARTITION": partition, "OMP_NUM_THREADS": "1"}
    env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{env['PATH']}"
    snakemake = [
        "snakemake",
        "-s",
        str(ROOT / "workflow/Snakefile"),
        "--profile",
        str(ROOT / "slurm"),
    ]
    snakemake += ["--configfile", "tiny.yaml", "--submitit-poll-seconds", "3"]
    snakemake += ["--latency-wait", "5", "--set-resources"]
    snakemake += [f"{rule}:mem_mb=900" for rule in ("tokens", "train", "measure", "throughput")]
    return snakemake, env


def test_study(cluster: Cluster, tiny: Callable[..., Study], tmp_path: Path) -> None:
    """With the profile. All trainings are preempted and go on: weights and trajectories are, to the
    bit, those of trainings that nobody disturbed."""
    study = tiny()
    snakemake, env = with_profile(cluster, "grace")
    snakemake.insert(1, "all")
    with open("controller.log", "w") as log:
        controller = subprocess.Popen(snakemake, env=env, stdout=log, stderr=log)
    try:
        logs = [study.work / "runs" / run.name / "train.log" for run in study.runs]
        until("training", 120, lambda: all(p.exists() and "step " in p.read_text() for p in logs))
        wanted = ["--partition=main", "--exclusive", f"--nodes={NODES}", "--output=/dev/null"]
        cluster.ask("sbatch", "--wait", *wanted, "--wrap=sleep 1", timeout=120)
        assert controller.wait(400) == 0, Path("controller.log").read_text()[-4000:]
    finally:
        controller.kill()
    for run in study.runs:
        result = study.results / "runs" / run.name
        provenance = json.loads((result / "run.json").read_text())["provenance"]
        assert provenance["resumes"] == provenance["requeues"] == 1
        trajectory, weights = alone(study, run, tmp_path / "alone" / run.name)
        assert (result / "trajectory.csv").read_text() == trajectory
        mine = tensorfile.read(study.work / "runs" / run.name / WEIGHTS).tensors
        assert mine.keys() == weights.keys()
        assert all(mine[name].equal(weights[name]) for name in mine)
    assert (study.results / "report.html").stat().st_size > 100_000
    assert (study.results / "claims.csv").exists()


def test_ranks_over_nodes(cluster: Cluster, tiny: Callable[..., Study], tmp_path: Path) -> None:
    """A size on two nodes, two ranks on each: without dropout its losses are those of one."""
    study = tiny(
        sizes={"nano": TINY["sizes"]["nano"] | {"gpus": 4, "nodes": 2}},
        cells={"perloop-rms": None},
        model={"loops": 2, "dropout": {"rate": 0.0, "at": []}},
        training=TINY["training"] | {"steps": 60, "log_every": 20},
    )
    (run,) = study.runs
    snakemake, env = with_profile(cluster, "main")
    snakemake.insert(1, "runs")
    done = subprocess.run(
        # The ranks compute on CPUs; the node's GPUs only say how many tasks there are.
        [*snakemake, "train:gpu=4"],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=200,
    )
    result = study.results / "runs" / run.name
    log = study.work / f"logs/train/{run.name}.log"
    assert done.returncode == 0, done.stdout + (log.read_text() if log.exists() else "")
    assert json.loads((result / "run.json").read_text())["provenance"]["execution"]["ranks"] == 4
    expected = list(csv.DictReader(alone(study, run, tmp_path / "alone")[0].splitlines()))
    mine = list(csv.DictReader((result / "trajectory.csv").read_text().splitlines()))
    assert len(mine) == len(expected) > 0
    for row, other in zip(mine, expected, strict=True):
        for name, value in other.items():
            try:
                assert float(row[name] or "nan") == pytest.approx(
                    float(value or "nan"), rel=1e-4, nan_ok=True
                )
            except ValueError:
                assert row[name] == value
