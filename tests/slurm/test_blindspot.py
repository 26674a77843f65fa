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
from study import PROJECT

from blindspot import checkpoint
from blindspot.study import Run, Study

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
    given += ["--out", out / "out", "--state", out / "state", "--device", "cpu", "--threads", 1]
    blindspot("train", *given)
    weights = checkpoint.read(out / "state" / checkpoint.WEIGHTS).tensors
    return (out / "out/trajectory.csv").read_text(), weights


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Study]:
    """Makes the current folder that of a small study, whose text is this project's licence."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    words, rng = (PROJECT / "LICENSE").read_text().split(), random.Random(0)
    for split, n in (("train", 3000), ("validation", 400), ("test", 300)):
        Path(f"{split}.txt").write_text(f"{split} " + " ".join(rng.choices(words, k=n)))

    def make(**changes: object) -> Study:
        Path("tiny.yaml").write_text(yaml.safe_dump(TINY | changes, sort_keys=False))
        return Study.load(PROJECT / "config.yaml", [Path("tiny.yaml")])

    return make


def test_study(cluster: Cluster, tiny: Callable[..., Study], tmp_path: Path) -> None:
    """With the profile. All trainings are preempted and go on: weights and trajectories are, to the
    bit, those of trainings that nobody disturbed."""
    study = tiny()
    env = cluster.env | {"SBATCH_PARTITION": "grace", "OMP_NUM_THREADS": "1"}
    env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{env['PATH']}"
    snakemake = ["snakemake", "-s", str(PROJECT / "Snakefile"), "--profile", str(PROJECT / "slurm")]
    snakemake += ["all", "--submitit-poll-seconds", "3", "--latency-wait", "5", "--set-resources"]
    snakemake += [f"{rule}:mem_mb=900" for rule in ("tokens", "train", "measure", "throughput")]
    with open("controller.log", "w") as log:
        controller = subprocess.Popen(
            [*snakemake, "--configfile", "tiny.yaml"], env=env, stdout=log, stderr=log
        )
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
        mine = checkpoint.read(study.work / "runs" / run.name / checkpoint.WEIGHTS).tensors
        assert mine.keys() == weights.keys()
        assert all(mine[name].equal(weights[name]) for name in mine)
    assert (study.results / "report.html").stat().st_size > 100_000
    assert (study.results / "claims.csv").exists()


RANKS = """
rule train:
    output: "out/run.json"
    threads: 1
    resources: nodes=2, gpu=4, runtime=5, mem_mb=2000
    shell:
        "srun python -m blindspot.cli train --spec {config[spec]:q} --name {config[name]:q}"
        " --tokens {config[tokens]:q} --out out --state state --device cpu 2>&1 | tee -a train.log"
"""


def test_ranks_over_nodes(cluster: Cluster, tiny: Callable[..., Study], tmp_path: Path) -> None:
    """One run on two nodes, two ranks on each: without dropout its losses are those of one."""
    changes = {"dropout": {"rate": 0.0, "at": []}, "loops": 2}
    study = tiny(model=changes, training=TINY["training"] | {"steps": 60, "log_every": 20})
    run = study.runs[-1]
    blindspot("corpus", "--spec", study.config.corpus.model_dump_json(), "--out", study.corpus)
    data = study.data.model_dump_json()
    blindspot("tokens", "--spec", data, "--corpus", study.corpus, "--out", study.tokens)
    config = {"spec": run.spec.canonical(), "name": run.name, "tokens": str(study.tokens)}
    Path("given.json").write_text(json.dumps(config))
    Path("Snakefile").write_text("configfile: 'given.json'\n" + RANKS)
    done = subprocess.run(
        [sys.executable, "-m", "snakemake", "--executor", "submitit", "--jobs", "1"],
        env=cluster.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stdout + Path("train.log").read_text()
    expected = list(csv.DictReader(alone(study, run, tmp_path / "alone")[0].splitlines()))
    mine = list(csv.DictReader(Path("out/trajectory.csv").read_text().splitlines()))
    assert len(mine) == len(expected) > 0
    for row, other in zip(mine, expected, strict=True):
        for name, value in other.items():
            try:
                assert float(row[name] or "nan") == pytest.approx(
                    float(value or "nan"), rel=1e-4, nan_ok=True
                )
            except ValueError:
                assert row[name] == value
