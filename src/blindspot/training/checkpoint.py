"""Resumable training state.

A checkpoint is one file (tensorfile.py): the parameters under their plain names, AdamW's moments
under `exp_avg.<name>` and `exp_avg_sq.<name>`, and beside them the step, the run's hash and the
trajectory so far. The data order and the dropout masks are functions of (seed, step), so the
step number is the only other state.
"""

import json
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from blindspot import tensorfile
from blindspot.config.runfiles import checkpoints
from blindspot.training.optimizer import AdamW

KEEP = 2


class Writer:
    """Writes checkpoints in the background: training waits for a copy in memory only.

    One at a time. An error while writing is raised by the next `start` or `wait`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def start(self, step: int, tensors: Mapping[str, Tensor], meta: dict[str, Any]) -> None:
        """Copy the current state and begin to write it; all but the newest `KEEP` are deleted."""
        self.wait()
        copies = {name: t.detach().to("cpu", copy=True) for name, t in tensors.items()}
        # The rows of the log go on growing.
        arguments = (path_of(self.folder, step), copies, json.loads(json.dumps(meta)))
        self._thread = threading.Thread(target=self._write, args=arguments, name="checkpoint")
        self._thread.start()

    def wait(self) -> None:
        """Wait until the last checkpoint is complete on disk."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error

    def join(self) -> None:
        """Like `wait`, but raises nothing: for use while another error is being handled."""
        with suppress(Exception):
            self.wait()

    def _write(self, path: Path, tensors: dict[str, Tensor], meta: dict[str, Any]) -> None:
        try:
            tensorfile.write(path, tensors, meta)
            prune(self.folder)
        except BaseException as error:
            self._error = error


def training_state(model: nn.Module, optimizer: AdamW) -> dict[str, Tensor]:
    """Parameters and AdamW's moments by name."""
    return dict(model.named_parameters()) | optimizer.named_moments()


def restore(model: nn.Module, optimizer: AdamW, saved: tensorfile.Saved, where: Path) -> None:
    """Load parameters and moments; every name must be there."""
    tensorfile.load(training_state(model, optimizer), saved, where)


def path_of(folder: Path, step: int) -> Path:
    return folder / f"step-{step:08d}.safetensors"


def prune(folder: Path, keep: int = KEEP) -> None:
    """Delete all but the newest `keep` checkpoints."""
    for path in checkpoints(folder)[keep:]:
        path.unlink(missing_ok=True)
