"""Weights and resumable training state as safetensors files that are whole or refused.

A checkpoint is one file: the parameters under their plain names, AdamW's moments under
`exp_avg.<name>` and `exp_avg_sq.<name>`, and in the header's metadata a JSON text with the step,
the run's hash, the trajectory so far and a SHA-256 over all of it. The data order and the dropout
masks are functions of (seed, step), so a step number is all the further state there is.
"""

import hashlib
import json
import re
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from blindspot.errors import BlindspotError
from blindspot.files import atomic_path
from blindspot.optimizer import AdamW

#: The file of final weights in a run's state folder.
WEIGHTS = "weights.safetensors"
KEEP = 2


class Checkpoint(NamedTuple):
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
    except (OSError, SafetensorError) as error:
        raise BlindspotError(
            f"{path}: could not be written ({error}); earlier checkpoints are whole. "
            f"Make room or mend the folder, then run the same command again"
        ) from None


class Writer:
    """Writes checkpoints while training goes on: it waits for a copy in memory, not for the disk.

    One at a time. What went wrong with one is raised by the next `start` or `wait`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def start(self, step: int, tensors: Mapping[str, Tensor], meta: dict[str, Any]) -> None:
        """Copy the state as it is now and begin to write it; older ones than `KEEP` are deleted."""
        self.wait()
        copies = {name: t.detach().to("cpu", copy=True) for name, t in tensors.items()}
        # The rows of the log go on growing.
        arguments = (path_of(self.folder, step), copies, json.loads(json.dumps(meta)))
        self._thread = threading.Thread(target=self._write, args=arguments, name="checkpoint")
        self._thread.start()

    def wait(self) -> None:
        """Until the last checkpoint is whole on disk."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _write(self, path: Path, tensors: dict[str, Tensor], meta: dict[str, Any]) -> None:
        try:
            write(path, tensors, meta)
            prune(self.folder)
        except BaseException as error:
            self._error = error


def read(path: Path) -> Checkpoint:
    """Read a file of `write` and check its digest; `BlindspotError` names a damaged one."""
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
    return Checkpoint(tensors, meta)


def _digest(tensors: Mapping[str, Tensor], text: str) -> str:
    total = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        total.update(f"{name} {tensors[name].dtype} {tuple(tensors[name].shape)}".encode())
        total.update(tensors[name].reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()


def training_state(model: nn.Module, optimizer: AdamW) -> dict[str, Tensor]:
    """Parameters and AdamW's moments by name."""
    return dict(model.named_parameters()) | optimizer.named_moments()


def restore(model: nn.Module, optimizer: AdamW | None, saved: Checkpoint, where: Path) -> None:
    """Load parameters, and moments when there is an optimizer; every name must be there."""
    wanted: dict[str, Tensor] = dict(model.named_parameters())
    if optimizer is not None:
        wanted |= optimizer.named_moments()
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


def checkpoints(folder: Path) -> list[Path]:
    """Checkpoint files of a state folder, newest first."""
    found = [p for p in folder.glob("step-*.safetensors") if re.fullmatch(r"step-\d{8}", p.stem)]
    return sorted(found, reverse=True)


def path_of(folder: Path, step: int) -> Path:
    return folder / f"step-{step:08d}.safetensors"


def prune(folder: Path, keep: int = KEEP) -> None:
    """Delete all but the newest `keep` checkpoints."""
    for path in checkpoints(folder)[keep:]:
        path.unlink(missing_ok=True)
