"""Checkpoints and result files are whole, or refused, or absent."""

import errno
import os
import stat
import time
from contextlib import nullcontext

import numpy as np
import pytest
import torch

from blindspot import files, tensorfile
from blindspot.errors import BlindspotError
from blindspot.lm.model import LoopedLM
from toys import toy_model


def test_checkpoints_hold_plain_names_and_a_missing_one_is_an_error(tmp_path):
    """T-03: no compilation prefix, nothing ignored."""
    model = LoopedLM(toy_model())
    path = tmp_path / "weights.safetensors"
    named = dict(model.named_parameters())
    tensorfile.write(path, named, {"step": 1, "run": "x"})
    saved = tensorfile.read(path)
    assert set(saved.tensors) == set(named)
    saved.tensors.pop("position.weight")
    with pytest.raises(BlindspotError, match=r"not this model's.*position\.weight"):
        tensorfile.load(named, saved, path)


def test_a_tensor_of_another_shape_is_an_error(tmp_path):
    path = tmp_path / "weights.safetensors"
    tensorfile.write(path, {"a": torch.zeros(3)}, {})
    with pytest.raises(BlindspotError, match=r"a has shape \(3,\), the model's is \(2,\)"):
        tensorfile.load({"a": torch.zeros(2)}, tensorfile.read(path), path)


@pytest.mark.parametrize("keep", [0, 7, 8, 100, 1000, -1])
def test_a_truncated_file_is_refused(keep, tmp_path):
    path = tmp_path / "weights.safetensors"
    tensorfile.write(path, {"a": torch.arange(500.0)}, {"step": 1})
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(BlindspotError, match="damaged or not a checkpoint"):
        tensorfile.read(path)


def test_a_file_cut_anywhere_or_with_any_bit_flipped_is_refused(tmp_path):
    """200 truncations and 400 single bits, over header and content alike: never read wrongly."""
    path, rng = tmp_path / "weights.safetensors", np.random.default_rng(0)
    tensors = {"a": torch.arange(40.0), "b.c": torch.ones(3, 2, dtype=torch.float64)}
    tensorfile.write(path, tensors, {"step": 14, "run": "0123abcd", "rows": [[1, "", 0.5]]})
    whole = path.read_bytes()
    assert tensorfile.read(path).meta["step"] == 14
    for keep in rng.integers(0, len(whole), 200):
        path.write_bytes(whole[:keep])
        with pytest.raises(BlindspotError, match="damaged or not a checkpoint"):
            tensorfile.read(path)
    wrong = 0
    for bit in rng.choice(8 * len(whole), 400, replace=False):
        torn = bytearray(whole)
        torn[bit // 8] ^= 1 << (bit % 8)
        path.write_bytes(torn)
        try:
            saved = tensorfile.read(path)
        except BlindspotError:
            wrong += 1
        else:  # a bit that says nothing (padding, the order of keys): then nothing may differ
            assert saved.meta["run"] == "0123abcd"
            assert all(torch.equal(saved.tensors[name], t) for name, t in tensors.items())
    assert wrong > 390


def test_altered_metadata_is_refused(tmp_path):
    path = tmp_path / "weights.safetensors"
    tensorfile.write(path, {"a": torch.zeros(3)}, {"step": 14})
    path.write_bytes(path.read_bytes().replace(b"14", b"15"))
    with pytest.raises(BlindspotError, match="damaged"):
        tensorfile.read(path)


def test_atomic_files_are_whole_or_absent(tmp_path):
    target = tmp_path / "result.csv"
    files.write_text(target, "old")
    with pytest.raises(RuntimeError), files.atomic_path(target) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]
    with pytest.raises(ValueError, match="Out of range"):
        files.write_json(tmp_path / "x.json", {"loss": float("nan")})
    assert not (tmp_path / "x.json").exists()


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EOPNOTSUPP, errno.EIO])
def test_a_file_system_that_cannot_sync_folders_is_no_error(number, tmp_path, monkeypatch):
    """SMB and some FUSE mounts say EINVAL; a disk that fails must still be heard."""
    real = os.fsync

    def fsync(file):
        if stat.S_ISDIR(os.fstat(file).st_mode):
            raise OSError(number, os.strerror(number))
        real(file)

    monkeypatch.setattr(os, "fsync", fsync)
    failing = pytest.raises(OSError, match="Input/output") if number == errno.EIO else nullcontext()
    with failing:
        files.write_text(tmp_path / "a.txt", "whole")
    assert (tmp_path / "a.txt").read_text() == "whole"


def test_a_file_dated_ahead_is_dated_now_and_no_other(tmp_path):
    """A server's clock is an hour ahead, so Snakemake would call what is made of its files old."""
    ahead, old = tmp_path / "ahead", tmp_path / "old"
    for path, at in ((ahead, time.time() + 3600), (old, 1e9)):
        path.touch()
        os.utime(path, (at, at))
    before = time.time()
    files.date_no_later([ahead, old, tmp_path / "none"])
    assert before <= ahead.stat().st_mtime <= time.time()
    assert old.stat().st_mtime == 1e9


def test_a_folder_that_cannot_be_written_is_found_with_its_owner(tmp_path, monkeypatch):
    """As of another user: results/a does not exist yet, so the folder above it decides."""
    closed = tmp_path / "closed"
    closed.mkdir()
    monkeypatch.setattr(os, "access", lambda path, mode: path != closed)
    asked = [tmp_path / "x.csv", closed / "results/a/run.json"]
    assert files.first_unwritable(asked) == f"{closed} (it belongs to {closed.owner()})"
    assert files.first_unwritable(asked[:1]) == ""
