"""Shards: a kill and a rerun leave the same files; a row of shards reads like one array."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blindspot.config.spec import Windows
from blindspot.data import corpus, shards, stream
from blindspot.data.corpora import local
from blindspot.data.shards import Shards
from blindspot.data.tokenizer import load
from blindspot.data.tokens import UNFINISHED, Tokens, build
from blindspot.data.windows import Batches, count
from blindspot.errors import BlindspotError
from test_tokens import BPE, TEXTS, WORDS, make
from toys import times_a_target


@pytest.fixture
def small(monkeypatch):
    """Shards of some 60 ids."""
    monkeypatch.setattr(stream, "BATCH", 50)
    monkeypatch.setattr(shards, "SHARD", 60)
    monkeypatch.setattr(shards, "CHUNK", 7)
    monkeypatch.setattr(local, "BLOCK", 20)


def files(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.mark.parametrize("tokenizer", [BPE, WORDS], ids=["bpe", "words"])
def test_many_shards_hold_what_one_does(tmp_path, small, tokenizer):
    make(tmp_path, tokenizer)
    model = load(tmp_path / "tokens" / "tokenizer.json")
    opened = Tokens.open(tmp_path / "tokens")
    for split, text in TEXTS.items():
        text = text.replace("\r\n", "\n")
        ids = opened.split(split)
        assert np.asarray(ids)[1:].tolist() == model.encode(text, add_special_tokens=False).ids
        assert opened.counts(split)["length"] == len(ids)
    assert len(list((tmp_path / "tokens").glob("train-*.bin"))) > 3
    assert isinstance(opened.split("train"), Shards)
    assert sorted(p.name for p in (tmp_path / "tokens").glob("*.json")) == [
        "index.json",
        "tokenizer.json",
        "tokens.json",
    ]


@pytest.mark.parametrize("shard", [60, 1 << 24])
def test_documents_keep_their_boundaries(tmp_path, monkeypatch, shard):
    monkeypatch.setattr(stream, "BATCH", 50)
    monkeypatch.setattr(shards, "SHARD", shard)
    monkeypatch.setattr(local, "BLOCK", 20)
    make(tmp_path)
    opened = Tokens.open(tmp_path / "tokens")
    model = load(tmp_path / "tokens" / "tokenizer.json")
    for split in corpus.SPLITS:
        documents = list(corpus.documents(tmp_path / "corpus", split))
        ids, begins = np.asarray(opened.split(split)), opened.documents(split)
        assert len(begins) == len(documents) == opened.counts(split)["documents"]
        sizes = [len(token) for token in map(model.id_to_token, ids[1:].tolist())]
        ends = np.cumsum(sizes)
        at = 0
        for begin, document in zip(begins.tolist(), documents, strict=True):
            # The document's first byte lies in that token: token n of the stream ends at ends[n-1].
            assert (ends[begin - 2] if begin > 1 else 0) <= at < ends[begin - 1]
            at += len(document.encode()) + 2


def test_spans_are_kept_of_what_is_scored(tmp_path, small):
    make(tmp_path)
    opened = Tokens.open(tmp_path / "tokens")
    for split in ("validation", "test"):
        spans, counts = opened.spans(split), opened.counts(split)
        assert spans.shape == (counts["length"], 2) and spans[0].tolist() == [0, 0]
        assert spans.sum(axis=0).tolist() == [counts["bytes"], counts["words"]]
    with pytest.raises(BlindspotError, match="spans are kept of validation, test, not of 'train'"):
        opened.spans("train")


class StoppedError(Exception):
    pass


def interrupt(monkeypatch, after):
    """Let the build die once so many shards are written."""
    left, write = [after], shards.write_shard

    def dying(*args, **named):
        if not left[0]:
            raise StoppedError
        left[0] -= 1
        return write(*args, **named)

    monkeypatch.setattr(shards, "write_shard", dying)


@pytest.mark.parametrize("after", [0, 1, 3, 5])
def test_an_interrupted_build_ends_with_the_same_files(tmp_path, small, monkeypatch, after):
    spec = make(tmp_path)
    expected = files(tmp_path / "tokens")
    other = tmp_path / "again"
    with monkeypatch.context() as patch:
        interrupt(patch, after)
        with pytest.raises(StoppedError):
            build(spec, tmp_path / "corpus", other)
    assert not (other / "tokens.json").exists() and (other / UNFINISHED).exists()
    kept = {p: p.stat().st_mtime_ns for p in other.glob("*.bin")}
    assert len(kept) == after
    calls = []
    with monkeypatch.context() as patch:
        patch.setattr("blindspot.data.tokenizer.train", lambda *_: calls.append("fit anew"))
        build(spec, tmp_path / "corpus", other)
    assert files(other) == expected and not calls
    assert {p: p.stat().st_mtime_ns for p in kept} == kept


def test_what_an_interrupted_build_left_is_not_trusted_blindly(tmp_path, small, monkeypatch):
    spec = make(tmp_path)
    expected, other = files(tmp_path / "tokens"), tmp_path / "again"
    for spoil in (
        lambda: (other / "train-00001.bin").write_bytes(b"\0\0"),
        lambda: (other / "train-00000.documents").unlink(),
        lambda: (other / "tokenizer.json").write_text("{}"),
        lambda: (other / UNFINISHED).write_text("{"),
        lambda: (other / UNFINISHED).unlink(),
    ):
        with monkeypatch.context() as patch:
            interrupt(patch, 3)
            with pytest.raises(StoppedError):
                build(spec, tmp_path / "corpus", other)
        spoil()
        build(spec, tmp_path / "corpus", other)
        assert files(other) == expected
    # The left-overs of another tokenizer are removed, all of them.
    with monkeypatch.context() as patch:
        interrupt(patch, 3)
        with pytest.raises(StoppedError):
            build(spec.model_copy(update={"tokenizer": WORDS}), tmp_path / "corpus", other)
    build(spec, tmp_path / "corpus", other)
    assert files(other) == expected


def test_a_killed_process_too(tmp_path):
    """A real SIGKILL in the middle of tokenization; the same command again."""
    spec = make(tmp_path, texts={**TEXTS, "train": TEXTS["train"] * 300})
    expected = files(tmp_path / "tokens")
    program = (
        "import sys, pathlib, time; from blindspot.data import shards\n"
        "from blindspot.data.tokens import build\n"
        "from blindspot.config.dataspec import DataSpec\n"
        "write = shards.write_shard\n"
        "def slow(*a, **k):\n"
        "    r = write(*a, **k); time.sleep(float(sys.argv[4])); return r\n"
        "shards.write_shard = slow\n"
        "build(DataSpec.model_validate_json(sys.argv[1]), *map(pathlib.Path, sys.argv[2:4]))\n"
    )
    out = tmp_path / "killed"
    command = [
        sys.executable,
        "-c",
        program,
        spec.model_dump_json(),
        str(tmp_path / "corpus"),
        str(out),
    ]
    process = subprocess.Popen([*command, "60"])
    deadline = time.monotonic() + 60
    while not list(out.glob("train-*.json")) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL and not (out / "tokens.json").exists()
    subprocess.run([*command, "0"], check=True, capture_output=True)
    assert files(out) == expected


def test_two_processes_that_build_the_same_end_with_the_same_files(tmp_path, small):
    """E-06: a requeued job may meet the one that it replaces; the second starts in the middle."""
    spec = make(tmp_path)
    expected, other = files(tmp_path / "tokens"), tmp_path / "again"
    write, started = shards.write_shard, []

    def met(*args, **named):
        record = write(*args, **named)
        if not started:  # behind the first shard, a whole second build runs
            started.append(True)
            build(spec, tmp_path / "corpus", other)
            assert files(other) == expected
        return record

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shards, "write_shard", met)
        build(spec, tmp_path / "corpus", other)
    assert started and files(other) == expected


def test_a_shard_that_was_cut_or_altered_is_named(tmp_path, small):
    make(tmp_path)
    folder = tmp_path / "tokens"
    for name, change, message in [
        ("train-00002.bin", lambda b: b[:-2], r"train-00002\.bin: \d+ bytes long, \d+ expected"),
        ("train-00001.bin", lambda b: b[:2] + b"\1\0" + b[4:], r"train-00001\.bin: .* altered"),
        ("train-00001.bin", lambda b: b"\xff\xff" + b[2:], r"train-00001\.bin: id 65535 is out"),
        ("validation-00000.spans", lambda b: b"\1" + b[1:], r"validation-00000\.spans: .* altered"),
        ("train-00001.documents", lambda b: b + b"\0", r"train-00001\.documents: .* expected"),
        ("index.json", lambda b: b.replace(b"[", b"[ ", 1), r"index\.json: not the index"),
    ]:
        path = folder / name
        whole = path.read_bytes()
        path.write_bytes(change(whole))
        with pytest.raises(BlindspotError, match=message):
            Tokens.open(folder)
        path.unlink()
        with pytest.raises(BlindspotError, match=f"{name}: no such file"):
            Tokens.open(folder, verify=False)
        path.write_bytes(whole)
    meta = json.loads((folder / "tokens.json").read_text())
    (folder / "tokens.json").write_text(json.dumps(meta | {"format": 1}))
    with pytest.raises(BlindspotError, match="format 1, this version reads 2"):
        Tokens.open(folder)


# --- a row of shards as one array ------------------------------------------------------------


@given(st.data())
def test_shards_read_like_one_array(data):
    parts = [
        np.arange(n, dtype="<u2") + 100 * i
        for i, n in enumerate(data.draw(st.lists(st.integers(0, 9), min_size=1, max_size=5)))
    ]
    row, whole = Shards(parts), np.concatenate(parts)
    assert len(row) == row.size == len(whole) and row.shape == whole.shape
    assert row.dtype == whole.dtype and np.asarray(row).tolist() == whole.tolist()
    bound = st.none() | st.integers(-50, 50)
    step = st.sampled_from([None, 1, 2, -1, -3])
    cut = slice(data.draw(bound), data.draw(bound), data.draw(step))
    assert row[cut].tolist() == whole[cut].tolist()
    if len(whole):
        place = st.integers(-len(whole), len(whole) - 1)
        at = np.array(data.draw(st.lists(st.lists(place, min_size=2, max_size=2), max_size=9)))
        at = at.astype(np.int64).reshape(-1, 2)
        assert row[at].tolist() == whole[at].tolist() and row[at].dtype == whole.dtype
        assert row[int(at[0, 0]) if len(at) else 0] == whole[int(at[0, 0]) if len(at) else 0]
        mask = whole % 2 == 0
        assert row[mask].tolist() == whole[mask].tolist()
    with pytest.raises(IndexError):
        row[len(whole)]


@given(st.data())
def test_every_token_is_a_target_as_often_as_promised(data):
    """T-08: over an epoch and all ranks, at any length, stride, batch, ranks and shards."""
    length = data.draw(st.integers(1, 20))
    windows = Windows(length=length, stride=data.draw(st.integers(1, length)))
    tokens = data.draw(st.integers(length + 1, 150))
    world = data.draw(st.integers(1, 3))
    batch = world * data.draw(st.integers(1, 4))
    edges = sorted(data.draw(st.lists(st.integers(0, tokens), max_size=4)))
    row = Shards(np.split(np.arange(tokens, dtype="<u2"), edges))
    n = count(tokens, windows)
    ranks = [Batches(row, windows, batch, 5, rank, world) for rank in range(world)]
    # So many steps that whole epochs were read: n steps are `batch` epochs.
    seen = np.zeros(tokens, dtype=np.int64)
    for step in range(n):
        for rank in ranks:
            np.add.at(seen, rank[step][:, 1:], 1)
    assert (seen == batch * times_a_target(tokens, windows)).all()
