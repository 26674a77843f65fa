"""Checkpoints and result files are whole, or refused, or absent."""

import pytest
import torch

from blindspot import checkpoint, files
from blindspot.errors import BlindspotError
from blindspot.model import LoopedLM
from toys import toy_model


def test_checkpoints_hold_plain_names_and_a_missing_one_is_an_error(tmp_path):
    """T-03: no compilation prefix, nothing ignored."""
    model = LoopedLM(toy_model())
    path = tmp_path / "weights.safetensors"
    named = dict(model.named_parameters())
    checkpoint.write(path, named, {"step": 1, "run": "x"})
    saved = checkpoint.read(path)
    assert set(saved.tensors) == set(named)
    saved.tensors.pop("position.weight")
    with pytest.raises(BlindspotError, match=r"not this model's.*position\.weight"):
        checkpoint.restore(model, None, saved, path)


@pytest.mark.parametrize("keep", [0, 7, 8, 100, 1000, -1])
def test_a_truncated_file_is_refused(keep, tmp_path):
    path = tmp_path / "weights.safetensors"
    checkpoint.write(path, {"a": torch.arange(500.0)}, {"step": 1})
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(BlindspotError, match="damaged or not a checkpoint"):
        checkpoint.read(path)


def test_altered_metadata_is_refused(tmp_path):
    path = tmp_path / "weights.safetensors"
    checkpoint.write(path, {"a": torch.zeros(3)}, {"step": 14})
    path.write_bytes(path.read_bytes().replace(b"14", b"15"))
    with pytest.raises(BlindspotError, match="damaged"):
        checkpoint.read(path)


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
