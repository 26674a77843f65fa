"""Tensors as one safetensors file that is whole or refused: final weights, and checkpoints.

In the header's metadata stand a JSON text of what belongs to the tensors, and a SHA-256 over all.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from blindspot.errors import BlindspotError, UnwritableError
from blindspot.files import atomic_path


class Saved(NamedTuple):
    """Tensors by name, and the JSON value that was saved beside them."""

    tensors: dict[str, Tensor]
    meta: dict[str, Any]


def write(path: Path, tensors: Mapping[str, Tensor], meta: dict[str, Any]) -> None:
    """Write tensors and metadata as one file, atomically."""
    tensors = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
    text = json.dumps(meta, sort_keys=True)
    header = {"blindspot": text, "sha256": _digest(tensors, text)}
    try:
        with atomic_path(path) as temporary:
            save_file(tensors, temporary, metadata=header)
    except (UnwritableError, SafetensorError) as error:
        raise BlindspotError(
            f"{path}: could not be written ({error.__cause__ or error}); earlier checkpoints are "
            f"whole. Make room or mend the folder, then run the same command again"
        ) from None


def read(path: Path) -> Saved:
    """Read a file of `write` and check its digest; `BlindspotError` names a damaged one."""
    if path.is_dir():
        raise BlindspotError(f"{path}: a folder, not a checkpoint")
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        text = header["blindspot"]
        if _digest(tensors, text) != header["sha256"]:
            raise ValueError("its content does not match its checksum")
        meta = json.loads(text)
    except FileNotFoundError:
        raise BlindspotError(f"{path}: no such file") from None
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise BlindspotError(f"{path}: damaged or not a checkpoint ({error})") from None
    return Saved(tensors, meta)


def _digest(tensors: Mapping[str, Tensor], text: str) -> str:
    total = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        total.update(f"{name} {tensors[name].dtype} {tuple(tensors[name].shape)}".encode())
        total.update(tensors[name].reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()


def load(wanted: Mapping[str, Tensor], saved: Saved, where: Path) -> None:
    """Copy what was saved into tensors of the same names and shapes; all of them must be there."""
    if set(wanted) != set(saved.tensors):
        odd = sorted(set(wanted) ^ set(saved.tensors))[:3]
        raise BlindspotError(f"{where}: its tensors are not this model's (first: {', '.join(odd)})")
    with torch.no_grad():
        for name, tensor in wanted.items():
            if tensor.shape != saved.tensors[name].shape:
                raise BlindspotError(
                    f"{where}: {name} has shape {tuple(saved.tensors[name].shape)}, "
                    f"the model's is {tuple(tensor.shape)}"
                )
            tensor.copy_(saved.tensors[name])
