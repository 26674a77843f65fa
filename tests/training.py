"""Toy trainings for tests: token files of seeded random words, jobs, and what came of them."""

import csv
import json
import shutil
import sys

import numpy as np
import torch

from blindspot import tensorfile
from blindspot.config.dataspec import DataSpec
from blindspot.config.digests import Digests, identified
from blindspot.config.execution import Execution
from blindspot.config.runfiles import WEIGHTS
from blindspot.config.spec import RunSpec
from blindspot.data.corpus import fetch
from blindspot.data.tokens import build
from blindspot.files import sha256_file, write_json
from blindspot.training.job import Job
from toys import toy_model, toy_objective

TEXT = "the norm of a state grows when nothing in the loss can see it, so its angle freezes"
EACH_STEP = {"checkpoint_steps": 1}


def toy_tokens(folder):
    """Token files of a toy text, and the identity of their data."""
    rng, words = np.random.default_rng(0), TEXT.split()
    for split, n in (("train", 900), ("validation", 300), ("test", 300)):
        (folder / f"{split}.txt").write_text(" ".join(rng.choice(words, n)) + f" {split}")
    paths = {s: str(folder / f"{s}.txt") for s in ("train", "validation", "test")}
    corpus = {"kind": "local"} | paths
    spec = DataSpec.model_validate(
        {"corpus": corpus, "tokenizer": {"kind": "bpe", "vocab_size": 270}}
    )
    known = identified(spec.corpus, Digests(folder / "digests.json"))
    spec = spec.model_copy(update={"corpus": known})
    fetch(spec.corpus, folder / "corpus")
    build(spec, folder / "corpus", folder / "tokens")
    return folder / "tokens", spec.identity()


def toy_job(
    tokens,
    folder,
    cell="perloop-rms",
    dropout=0.1,
    seed=5,
    execution=None,
    shape=None,
    **changes,
):
    """A job on `tokens` (from `toy_tokens`) in `folder`; `changes` to its training settings,
    `shape` to its model."""
    settings = {
        "steps": 24,
        "learning_rate": 3e-3,
        "precision": "float32",
        "log_every": 5,
        "validate_every": 10,
        "validation_windows": 6,
    } | changes
    model = toy_model(cell, vocab_size=270, dropout={"rate": dropout}, **(shape or {}))
    spec = RunSpec.model_validate(
        {
            "data": tokens[1],
            "windows": {"length": 12, "stride": 6},
            "model": model.identity(),
            "objective": toy_objective(cell).identity(),
            "training": settings,
            "batch": 4,
            "seed": seed,
        }
    )
    name = f"toy/{cell}/seed{seed}-{spec.hash}"
    how = Execution(**(execution or {}))
    return Job(name, spec, tokens[0], folder / "out", folder / "state", "cpu", execution=how)


def typed_job(tokens, folder, cell="perloop-rms", **changes):
    """A toy job whose files lie where the command line puts them."""
    job = toy_job(tokens, folder, cell, **changes)
    job.out = folder / "results" / "runs" / job.name
    job.state = folder / "work" / "runs" / job.name
    return job


def command(job, *more):
    """The command line of a `typed_job`."""
    # Above runs/ and the three parts of the name.
    folders = {"tokens": job.tokens, "results": job.out.parents[3], "work": job.state.parents[3]}
    words = ["train", "--spec", job.spec.canonical(), "--name", job.name, "--device", "cpu"]
    words += [word for key, path in folders.items() for word in (f"--{key}", str(path))]
    words += ["--execution", job.execution.model_dump_json()]
    return [sys.executable, "-m", "blindspot.cli", *words, *more]


def other_ids(tokens, folder):
    """The token files of `toy_tokens`, whole in themselves, with two ids that have changed places:
    what a tokenizer of the same settings, but another order of merges, would have made."""
    shutil.copytree(tokens[0], folder)
    index, meta = (json.loads((folder / f"{n}.json").read_text()) for n in ("index", "tokens"))
    for split, parts in index.items():
        (part,) = parts
        path = folder / f"{split}-00000.bin"
        ids = np.fromfile(path, dtype="<u2")
        common, next_ = np.bincount(ids).argsort()[[-1, -2]]
        places = ids == common, ids == next_
        ids[places[0]], ids[places[1]] = next_, common
        ids.tofile(path)
        part["sha256"]["bin"] = meta["splits"][split]["sha256"] = sha256_file(path)
    write_json(folder / "index.json", index)
    meta["index_sha256"] = sha256_file(folder / "index.json")
    write_json(folder / "tokens.json", meta)
    return folder, tokens[1]


def log_of(job):
    return (job.state / "train.log").read_text()


def record_of(job):
    return json.loads((job.out / "run.json").read_text())


def weights(job):
    return tensorfile.read(job.state / WEIGHTS).tensors


def trajectory(job):
    with open(job.out / "trajectory.csv") as file:
        return list(csv.DictReader(file))


def assert_same_run(a, b):
    left, right = weights(a), weights(b)
    assert left.keys() == right.keys()
    for name in left:
        assert torch.equal(left[name], right[name]), name
    assert (a.out / "trajectory.csv").read_bytes() == (b.out / "trajectory.csv").read_bytes()
