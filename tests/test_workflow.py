"""The whole workflow through Snakemake: a tiny study, checked by its values."""

import csv
import json
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
import yaml

from blindspot import tensorfile
from blindspot.config.runfiles import WEIGHTS
from blindspot.config.study import Study
from blindspot.data.tokens import Tokens
from reference_model import states, token_nll
from studies import TINY, checkout, finished, load, snakemake
from toys import ROOT


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """The finished tiny study, to look at."""
    return finished(tmp_path_factory)


def table(path):
    with open(path) as file:
        return list(csv.DictReader(file))


def plain_exits(p, stream, spec, min_context):
    """Sum of NLL at each depth, each target scored once, by a plain loop over the stream.

    The window of target t is the first of those that start every (T - min_context) tokens, or
    flush with the end, to reach it.
    """
    T, total = spec.context, np.zeros(spec.loops)
    done = 1
    while done < len(stream):
        end = T + 1 if done == 1 else min(done + T - min_context, len(stream))
        ids = torch.from_numpy(stream[end - T - 1 : end].astype(np.int64))[None]
        hs = states(p, ids[:, :-1], spec)
        for k in range(1, spec.loops + 1):
            nll = token_nll(p, hs[k], k, ids[:, 1:], spec)[0]
            total[k - 1] += nll[done - end :].sum().item()
        done = end
    return total


def test_tables_say_what_a_plain_computation_from_the_weights_says(study):
    where, _ = study
    planned = load(where)
    tokens = Tokens.open(where / planned.tokens)
    stream = np.asarray(tokens.split("validation"))
    ce, norm = {}, {}
    for run in planned.runs:
        saved = tensorfile.read(where / "work" / "runs" / run.name / WEIGHTS)
        p = {name: t.double() for name, t in saved.tensors.items()}
        nll = plain_exits(p, stream, run.spec.model, 8)
        ce.setdefault(run.cell, []).append(nll / (len(stream) - 1))
        n = (len(stream) // 16) * 16
        windows = torch.from_numpy(stream[:n].astype(np.int64)).view(-1, 16)
        norm.setdefault(run.cell, []).append(
            [h.norm(dim=-1).mean().item() for h in states(p, windows, run.spec.model)]
        )
    results = where / "results/tiny"
    # Over seeds both are means of logarithms.
    ppl = {cell: np.exp(np.mean(values, 0)) for cell, values in ce.items()}
    main = table(results / "tables/main.csv")
    assert [(r["size"], r["cell"], r["seeds"]) for r in main] == [
        ("nano", cell, "2") for cell in TINY["cells"]
    ]
    for row in main:
        assert row["protocol"] == "full"
        assert float(row["ppl"]) == pytest.approx(ppl[row["cell"]][-1], rel=1e-4)
        norms = np.exp(np.mean(np.log(norm[row["cell"]]), 0))
        assert float(row["norm"]) == pytest.approx(norms[-1], rel=1e-4)
    depth = {
        (r["cell"], int(r["k"])): float(r["ppl"])
        for r in table(results / "tables/depth.csv")
        if (r["split"], r["protocol"]) == ("validation", "full")
    }
    for cell, values in ppl.items():
        for k in (1, 2):
            assert depth[cell, k] == pytest.approx(values[k - 1], rel=1e-4)


def test_throughput_is_measured_for_every_cell_and_depth(study):
    where, _ = study
    rows = table(where / "results/tiny/collected/throughput.csv")
    assert {(r["cell"], r["k"]) for r in rows} == {(c, k) for c in TINY["cells"] for k in "12"}
    for row in rows:
        assert float(row["tokens_per_s_q25"]) <= float(row["tokens_per_s"])
        assert float(row["tokens_per_s"]) <= float(row["tokens_per_s_q75"])
    speed = {(r["cell"], r["k"]): float(r["tokens_per_s"]) for r in rows}
    assert speed["perloop-rms", "1"] > speed["perloop-rms", "2"]


def test_the_report_and_the_closing_words_are_there(study):
    where, said = study
    html = (where / "results/tiny/report.html").read_text()
    figures = list((where / "results/tiny/figures").glob("*.png"))
    landing = (where / "results/tiny/landing.html").read_text()
    assert html.count(";base64,iVBOR") == len(figures) + 4 >= 9
    assert landing.count(";base64,iVBOR") == 4 and "<h1>Study tiny</h1>" in html
    # Each table, figure and the ledger with its CSV, and nothing else.
    tables = list((where / "results/tiny/tables").glob("*.html"))
    assert len(re.findall(r'"mime_type": "text/csv"', html)) == len(figures) + len(tables) + 1
    assert f"Report: {(where / 'results/tiny/report.html').as_uri()}" in said
    main = {r["cell"]: float(r["norm"]) for r in table(where / "results/tiny/tables/main.csv")}
    assert f"{main['perloop-rms']:,.1f} in perloop-rms" in said


def counts(plan):
    """Jobs a rule, from a dry run's table."""
    if "Job stats:" not in plan:
        return {}
    rows = [line.split() for line in plan.split("Job stats:")[-1].split("\n\n")[0].splitlines()]
    return {row[0]: int(row[1]) for row in rows if len(row) == 2 and row[1].isdigit()}


def test_a_fresh_clone_plans_every_run_of_the_demo(tmp_path):
    checkout(tmp_path)
    plan = snakemake(tmp_path, "-n", "all", "--configfile", "studies/demo.yaml").stdout
    runs = Study.load(ROOT / "config.yaml", [ROOT / "studies/demo.yaml"]).runs
    assert counts(plan)["train"] == counts(plan)["measure"] == len(runs) >= 8 * 3
    assert {"corpus", "tokens", "throughput", "collect", "report"} <= counts(plan).keys()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["all"], ["study paper is for GPUs", "make demo", "--profile slurm"]),
        (["-n", "--config", "wieght=1", "--", "all"], ["wieght", "unknown key"]),
        (["-n", "--config", "model={loops: 0}", "--", "all"], ["model.loops", "(got 0)"]),
        (["-n", "all", "--configfile", "bad.yaml"], ["bad.yaml", "heads 5", "d_model 16"]),
    ],
)
def test_a_bad_start_is_one_message(arguments, said, tmp_path):
    if arguments == ["all"] and torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    checkout(tmp_path)
    sizes = {"nano": {"d_model": 16, "layers": 1, "heads": 5, "batch": 4}}
    (tmp_path / "bad.yaml").write_text(yaml.safe_dump({"study": "bad", "sizes": sizes}))
    done = snakemake(tmp_path, *arguments, check=False)
    assert done.returncode != 0
    for word in said:
        assert word in done.stdout
    assert "Traceback" not in done.stdout
    assert not (tmp_path / "results").exists()
    # The lock of the study, at most.
    assert {p.name for p in (tmp_path / "work").glob("*")} <= {"locks"}


def blindspot(where, *arguments):
    return subprocess.run(
        [sys.executable, "-c", "from blindspot.cli import main; main()", *arguments],
        cwd=where,
        text=True,
        capture_output=True,
        timeout=300,
    )


def test_a_corrupt_token_file_and_an_empty_corpus_stop_with_one_message(study, tmp_path):
    where, _ = study
    run = load(where).runs[0]
    shutil.copytree(where / load(where).tokens, tmp_path / "tokens")
    data = bytearray((tmp_path / "tokens/train-00000.bin").read_bytes())
    data[100] ^= 1
    (tmp_path / "tokens/train-00000.bin").write_bytes(data)
    done = blindspot(
        tmp_path,
        *("train", "--spec", run.spec.canonical(), "--name", run.name),
        *("--tokens", "tokens", "--results", "out", "--work", "state", "--device", "cpu"),
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: tokens/train-00000.bin: its content was altered")
    assert not (tmp_path / "out").exists()
    for split in ("train", "validation", "test"):
        (tmp_path / f"{split}.txt").write_text("" if split == "train" else split)
    spec = {"kind": "local"} | {s: f"{s}.txt" for s in ("train", "validation", "test")}
    done = blindspot(tmp_path, "corpus", "--spec", json.dumps(spec), "--out", "corpus")
    assert done.returncode == 2
    assert "train" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "corpus/corpus.json").exists()


def test_uniform_predictions_have_a_perplexity_of_the_vocabulary(study):
    """Zero weights say nothing, so every token has probability 1/V at every depth."""
    from blindspot.lm.model import LoopedLM
    from blindspot.measure.exits import measure
    from blindspot.measure.subject import Subject

    where, _ = study
    planned = load(where)
    run = planned.runs[0]
    model = LoopedLM(run.spec.model)
    with torch.no_grad():
        model.embedding.weight.zero_()
    model.requires_grad_(False).eval()
    tokens = Tokens.open(where / planned.tokens)
    rows = measure(Subject(model, run.spec, planned.config.measurement, tokens))["exits"]
    full = [row for row in rows if row[:2] == ["test", "full"]]
    assert [row[2] for row in full] == [1, 2, 8]
    assert [float(row[8]) for row in full] == pytest.approx([300.0] * 3, rel=1e-6)
