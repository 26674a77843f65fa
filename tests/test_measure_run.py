"""The measurement job: every file it names, its record, and that a run is only read."""

import csv
import math

import numpy as np
import pytest
import torch

from blindspot import tensorfile
from blindspot.config.runfiles import WEIGHTS
from blindspot.config.spec import DataSpec, Measurement
from blindspot.data.tokens import Tokens, build
from blindspot.errors import BlindspotError
from blindspot.files import read_json, sha256_file
from blindspot.measure import names, run
from measuring import subject
from toys import toy_model

SETTINGS = Measurement(
    min_context=5,
    depths_beyond=(5,),
    norm_tokens=240,
    probe_tokens=48,
    update_loops=4,
    intervention_tokens=240,
)


def corpus(folder):
    """A local corpus of three splits of made-up prose, and its `DataSpec`."""
    from blindspot.config.spec import LocalCorpus
    from blindspot.data import corpus as corpora

    rng = np.random.default_rng(0)
    paths = {}
    for split, count in (("train", 6000), ("validation", 1500), ("test", 1500)):
        words = ["".join(rng.choice(list("abcdefgh"), size=rng.integers(1, 6))) for _ in range(400)]
        path = folder / f"{split}.txt"
        path.write_text(" ".join(rng.choice(words, size=count)), encoding="utf-8")
        paths[split] = str(path)
    local = LocalCorpus(kind="local", **paths)
    data = DataSpec(corpus=local, tokenizer={"kind": "bpe", "vocab_size": 300})
    corpora.fetch(local, folder / "corpus")
    build(data, folder / "corpus", folder / "tokens")
    return data


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Jobs of two runs of random weights, one after the other, in one process."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("measure")
    data = corpus(folder)
    jobs = {}
    for cell in ("perloop-rms", "terminal-raw"):
        spec = subject(cell).spec
        spec = spec.model_copy(
            update={"data": data.identity(), "model": toy_model(cell, vocab_size=300)}
        )
        model = run.load.LoopedLM(spec.model)
        tensorfile.write(
            folder / cell / WEIGHTS,
            dict(model.named_parameters()),
            {"run": spec.hash, "step": 1},
        )
        job = run.Job(
            cell, spec, SETTINGS, folder / "tokens", folder / cell, folder / f"{cell}-out"
        )
        run.measure(job)
        jobs[cell] = job
    return jobs


def rows(path):
    with open(path, encoding="utf-8", newline="") as handle:
        return list(csv.DictReader(handle))


def test_the_names_that_the_workflow_plans_with_are_the_files_that_are_made(measured):
    defined = [name for module in run.MEASUREMENTS for name in module.FILES]
    assert list(names.FILES) == defined
    for job in measured.values():
        made = {path.name for path in job.out.iterdir()}
        assert made == {f"{name}.csv" for name in names.FILES} | {"measure.json"}


def test_every_value_is_a_number_or_a_word_and_every_row_is_whole(measured):
    for job in measured.values():
        for module in run.MEASUREMENTS:
            for name, columns in module.FILES.items():
                text = (job.out / f"{name}.csv").read_text(encoding="utf-8").splitlines()
                assert text[0].split(",") == list(columns)
                assert all(line.count(",") == len(columns) - 1 for line in text)
                assert name == "gradient_eps" or len(text) > 1
                # Small enough to commit.
                assert sum(map(len, text)) < 100_000
    raw = rows(measured["terminal-raw"].out / "exits.csv")
    assert {r["k"] for r in raw} == {"1", "2", "3", "5"} and {r["trained_k"] for r in raw} == {"3"}


def test_every_module_explains_its_columns():
    for module in run.MEASUREMENTS:
        for name in module.FILES:
            assert f"`{name}.csv`" in module.__doc__


def test_words_and_bytes_of_real_tokens(measured):
    """Of the whole split: its text decoded, its words counted by hand."""
    job = measured["perloop-rms"]
    tokens = Tokens.open(job.tokens)
    from blindspot.data import tokenizer

    text = tokenizer.load(tokens.folder / "tokenizer.json").decode(
        tokens.split("test")[1:].tolist()
    )
    row = next(r for r in rows(job.out / "exits.csv") if (r["split"], r["protocol"]) == (
        "test", "full"))  # fmt: skip
    assert int(row["tokens"]) == len(tokens.split("test")) - 1
    assert int(row["words"]) == len(text.split()) and int(row["bytes"]) == len(text.encode())
    nll = float(row["nll"])
    assert float(row["word_ppl"]) == pytest.approx(math.exp(nll / int(row["words"])))


def test_the_record_pins_its_files_and_settings(measured):
    for job in measured.values():
        record = read_json(job.out / "measure.json")
        assert record["run"] == job.name and record["hash"] == job.spec.hash
        assert record["settings"] == SETTINGS.identity()
        assert set(record["files"]) == {f"{name}.csv" for name in names.FILES}
        for name, digest in record["files"].items():
            assert sha256_file(job.out / name) == digest
        assert set(record["provenance"]["seconds"]) == {
            m.__name__.rpartition(".")[2] for m in run.MEASUREMENTS
        }


def test_measuring_again_gives_equal_bytes_and_disturbs_nothing(measured, tmp_path):
    """T-05: dropout is off whatever the rate; the generator and the weights stay as they are."""
    job = measured["perloop-rms"]
    weights, state = sha256_file(job.state / WEIGHTS), torch.random.get_rng_state()
    again = run.Job(**{**vars(job), "out": tmp_path})
    run.measure(again)
    for name in names.FILES:
        if name != "halting_timing":
            first, second = (folder / f"{name}.csv" for folder in (job.out, tmp_path))
            assert first.read_bytes() == second.read_bytes(), name
    assert sha256_file(job.state / WEIGHTS) == weights
    assert torch.equal(torch.random.get_rng_state(), state)


def test_lost_or_foreign_weights_are_named(measured, tmp_path):
    job = measured["perloop-rms"]
    gone = run.Job(**{**vars(job), "state": tmp_path, "out": tmp_path / "out"})
    with pytest.raises(BlindspotError, match="the weights of this run are gone"):
        run.measure(gone)
    other = measured["terminal-raw"]
    swapped = run.Job(**{**vars(job), "state": other.state, "out": tmp_path / "out"})
    with pytest.raises(BlindspotError, match=f"weights of run {other.spec.hash}"):
        run.measure(swapped)
    assert not (tmp_path / "out").exists()


def test_weights_are_measured_on_the_tokens_they_were_trained_on(measured, tmp_path, capsys):
    job = measured["perloop-rms"]
    own = Tokens.open(job.tokens).digest
    assert read_json(job.out / "measure.json")["tokens_sha256"] == own
    saved, seen = tensorfile.read(job.state / WEIGHTS), []

    class LoadedError(Exception):
        """What is wanted is known."""

    def loaded(*_):
        seen.append(capsys.readouterr().err)
        raise LoadedError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run.load, "load", loaded)
        moved = run.Job(**{**vars(job), "state": tmp_path, "out": tmp_path / "out"})
        for tokens in ({}, {"tokens": own}):
            tensorfile.write(tmp_path / WEIGHTS, saved.tensors, saved.meta | tokens)
            with pytest.raises(LoadedError):
                run.measure(moved)
        assert "from before weights named their token files" in seen[0] and own in seen[0]
        assert "token files" not in seen[1]
        tensorfile.write(tmp_path / WEIGHTS, saved.tensors, saved.meta | {"tokens": "f" * 64})
        with pytest.raises(BlindspotError, match=f"digest {'f' * 64}, those in .* have {own}"):
            run.measure(moved)
    assert not (tmp_path / "out").exists()


def test_validation_and_test_are_not_mixed_up(measured):
    """E-07: test loss moves with the test split alone."""
    s = subject()
    from blindspot.measure import exits

    before = exits.measure(s)["exits"]
    s.tokens.splits["test"] = (s.tokens.splits["test"] + 1) % 37
    after = exits.measure(s)["exits"]
    for a, b in zip(before, after, strict=True):
        assert (a == b) == (a[0] == "validation")
