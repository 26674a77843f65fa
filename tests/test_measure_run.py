"""The measurement job: every file it names, its record, and that a run is only read."""

import csv
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from blindspot import declared, tensorfile
from blindspot.collect.csvfile import read_csv
from blindspot.config.dataspec import DataSpec
from blindspot.config.runfiles import WEIGHTS
from blindspot.config.spec import Measurement
from blindspot.data.tokens import Tokens, build
from blindspot.declared.columns import Context
from blindspot.errors import BlindspotError
from blindspot.files import read_json, sha256_file
from blindspot.measure import run
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
    from blindspot.config.dataspec import LocalCorpus
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


def made(job, file):
    """The path of a measured CSV."""
    (found,) = job.out.glob(f"*/{file}.csv")
    return found


def test_the_files_that_are_declared_are_the_files_that_are_made(measured):
    folders = declared.folders(SETTINGS)
    for job in measured.values():
        there = {p.relative_to(job.out).as_posix() for p in job.out.rglob("*") if p.is_file()}
        expected = {declared.complete(folders)}
        for name, measurement in declared.MEASUREMENTS.items():
            expected |= {f"{folders[name]}/{f.csv}" for f in measurement.files}
            expected.add(f"{folders[name]}/measure.json")
        assert there == expected


def test_every_row_is_whole_and_as_it_is_declared(measured):
    """What the measurements write passes what `collect` asks."""
    for job in measured.values():
        for measurement in declared.MEASUREMENTS.values():
            for file in measurement.files:
                path = made(job, file.name)
                frame = read_csv(path, file.types, file.keys)
                assert file.name == "gradient_eps" or len(frame)
                assert list(file.faults(frame, Context(job.spec, 1))) == [], file.name
                # Small enough to commit.
                assert path.stat().st_size < 100_000
    raw = rows(made(measured["terminal-raw"], "exits"))
    assert {r["k"] for r in raw} == {"1", "2", "3", "5"} and {r["trained_k"] for r in raw} == {"3"}


def test_a_measurement_reads_the_settings_that_it_declares_and_no_others():
    """Each one read for real, so that a changed one makes it anew; another one is an error."""
    for name, measurement in declared.MEASUREMENTS.items():
        s = subject(settings=SETTINGS.model_dump())
        read = set()

        class Watched:
            def __init__(self, settings, read):
                self.settings, self.read = settings, read

            def __getattr__(self, key):
                self.read.add(key)
                return getattr(self.settings, key)

        s.settings = Watched(s.settings, read)
        run.compute(name, s)
        assert read == set(measurement.settings), name
    with pytest.raises(AttributeError, match=r"norms reads the setting min_context.*norms\.py"):
        _ = subject().limited("norms", ["norm_tokens"]).settings.min_context


def test_only_what_is_missing_is_made(measured, tmp_path):
    """After another setting of one measurement, and after a lost record: no other one is made, and
    without either no weights are needed."""
    out = tmp_path / "out"
    shutil.copytree(measured["perloop-rms"].out, out)
    before = {p: p.stat().st_mtime_ns for p in out.rglob("*.csv")}
    changed = SETTINGS.model_copy(update={"min_context": 4})
    job = run.Job(**{**vars(measured["perloop-rms"]), "out": out, "settings": changed})
    run.measure(job)
    assert {p: p.stat().st_mtime_ns for p in before} == before
    new = {p.parent.name for p in out.rglob("*.csv")} - {p.parent.name for p in before}
    # The two that read that setting.
    assert new == {declared.MEASUREMENTS[name].folder(changed) for name in ("exits", "windows")}
    assert (out / declared.complete(declared.folders(changed))).exists()
    lost = out / declared.MEASUREMENTS["clamp"].folder(SETTINGS)
    (lost / "measure.json").unlink()
    after = {p: p.stat().st_mtime_ns for p in out.rglob("*.csv")}
    run.measure(job)
    assert {p.name for p in after if p.stat().st_mtime_ns != after[p]} == {"clamp.csv"}
    gone = run.Job(**{**vars(job), "state": tmp_path})
    run.measure(gone)
    (lost / "measure.json").unlink()
    with pytest.raises(BlindspotError, match="the weights of this run are gone"):
        run.measure(gone)


def test_every_measurement_has_its_module():
    for name in declared.MEASUREMENTS:
        assert (Path(run.__file__).with_name(f"{name}.py")).exists()
    files = [f for m in declared.MEASUREMENTS.values() for f in m.files]
    assert len({f.name for f in files}) == len(files)


def test_words_and_bytes_of_real_tokens(measured):
    """Of the whole split: its text decoded, its words counted by hand."""
    job = measured["perloop-rms"]
    tokens = Tokens.open(job.tokens)
    from blindspot.data import tokenizer

    text = tokenizer.load(tokens.folder / "tokenizer.json").decode(
        tokens.split("test")[1:].tolist()
    )
    row = next(r for r in rows(made(job, "exits")) if (r["split"], r["protocol"]) == (
        "test", "full"))  # fmt: skip
    assert int(row["tokens"]) == len(tokens.split("test")) - 1
    assert int(row["words"]) == len(text.split()) and int(row["bytes"]) == len(text.encode())
    nll = float(row["nll"])
    assert float(row["word_ppl"]) == pytest.approx(math.exp(nll / int(row["words"])))


def test_a_record_pins_its_files_and_settings(measured):
    for job in measured.values():
        for name, measurement in declared.MEASUREMENTS.items():
            folder = job.out / measurement.folder(SETTINGS)
            record = read_json(folder / "measure.json")
            assert record["run"] == job.name and record["hash"] == job.spec.hash
            assert record["measurement"] == name and record["revision"] == measurement.revision
            assert record["settings"] == {k: SETTINGS.identity()[k] for k in measurement.settings}
            assert set(record["files"]) == {file.csv for file in measurement.files}
            for file, digest in record["files"].items():
                assert sha256_file(folder / file) == digest
            assert record["provenance"]["seconds"] >= 0


def test_measuring_again_gives_equal_bytes_and_disturbs_nothing(measured, tmp_path):
    """T-05: dropout is off whatever the rate; the generator and the weights stay as they are."""
    job = measured["perloop-rms"]
    weights, state = sha256_file(job.state / WEIGHTS), torch.random.get_rng_state()
    again = run.Job(**{**vars(job), "out": tmp_path})
    run.measure(again)
    for measurement in declared.MEASUREMENTS.values():
        for file in measurement.files:
            if file.name != "halting_timing":
                first, second = made(job, file.name), made(again, file.name)
                assert first.read_bytes() == second.read_bytes(), file.name
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
    for record in job.out.glob("*/measure.json"):
        assert read_json(record)["tokens_sha256"] == own
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
