"""Marks of runs to make anew, and remembered digests: no Snakemake here."""

import json
import os
import time

import pytest

from blindspot.config import digests
from blindspot.files import sha256_file
from blindspot.training import remake


def test_a_marked_run_loses_its_state_once(tmp_path):
    state, out = tmp_path / "state", tmp_path / "out"
    for path in (state / "weights.safetensors", state / "step-00000010.safetensors"):
        path.parent.mkdir(exist_ok=True)
        path.touch()
    (state / "train.log").touch()
    for name in ("measure-12345678", "measure/exits-9abcdef0"):
        (out / name).mkdir(parents=True)
        (out / name / "measure.json").touch()
    assert not remake.clear_if_asked(state, out)
    assert (state / "weights.safetensors").exists()
    remake.ask(state)
    assert remake.clear_if_asked(state, out)
    assert [p.name for p in state.iterdir()] == ["train.log"]
    assert not list(out.iterdir())
    (state / "step-00000020.safetensors").touch()
    assert not remake.clear_if_asked(state, out)
    assert (state / "step-00000020.safetensors").exists()


def test_a_digest_is_remembered_until_the_file_changes(tmp_path, monkeypatch):
    monkeypatch.setattr(digests, "SETTLED_NS", 0)
    text, store = tmp_path / "a.txt", tmp_path / "work/digests.json"
    text.write_text("one")
    time.sleep(0.02)
    first = digests.Digests(store).sha256(text)
    assert first == sha256_file(text)
    read = []
    monkeypatch.setattr(digests, "sha256_file", lambda path: read.append(path) or sha256_file(path))
    assert digests.Digests(store).sha256(text) == first and not read
    # Same size, same mtime, other content: the ctime tells.
    stat = text.stat()
    text.write_text("two")
    os.utime(text, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert digests.Digests(store).sha256(text) == sha256_file(text) != first
    assert read


def test_a_file_that_was_just_written_is_not_remembered(tmp_path):
    text, store = tmp_path / "a.txt", tmp_path / "digests.json"
    text.write_text("one")
    digests.Digests(store).sha256(text)
    assert not store.exists()


@pytest.mark.parametrize("damaged", ["", "{", "[1]", '{"x": 3}', '{"x": [1, 2]}'])
def test_a_damaged_store_costs_time_never_truth(damaged, tmp_path):
    text, store = tmp_path / "a.txt", tmp_path / "digests.json"
    text.write_text("one")
    store.write_text(damaged.replace('"x"', json.dumps(str(text.resolve()))))
    assert digests.Digests(store).sha256(text) == sha256_file(text)


def test_a_store_that_cannot_be_written_is_done_without(tmp_path, monkeypatch):
    monkeypatch.setattr(digests, "SETTLED_NS", 0)
    text = tmp_path / "a.txt"
    text.write_text("one")
    time.sleep(0.02)
    (tmp_path / "work").write_text("a file where a folder should be")
    assert digests.Digests(tmp_path / "work/digests.json").sha256(text) == sha256_file(text)
