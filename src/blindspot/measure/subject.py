"""What every measurement is made on: a model, its run's specification, settings and tokens."""

import copy
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from blindspot.config.spec import Measurement, RunSpec
from blindspot.data.tokens import Tokens
from blindspot.errors import BlindspotError
from blindspot.lm.heads import token_cross_entropy
from blindspot.lm.model import LoopedLM
from blindspot.lm.norm import RMSNorm

Ids = NDArray[np.int64]
#: Ids that are counted at a time, so that a large training split does not fill the memory.
COUNTED = 1 << 24
#: One row of a CSV.
Row = list[object]


@dataclass
class Subject:
    """A trained run under measurement; `model` is float32 and in evaluation mode."""

    model: LoopedLM
    spec: RunSpec
    settings: Measurement
    tokens: Tokens

    def limited(self, reader: str, names: Collection[str]) -> Self:
        """The same subject, with no settings but these: a measurement that read another one would
        not be made anew when that one changes. What was computed once is shared."""
        limited = copy.copy(self)
        limited.__dict__ = self.__dict__ | {"settings": _Limited(self.settings, reader, names)}
        return limited

    @property
    def loops(self) -> int:
        """The K of training."""
        return self.spec.model.loops

    @property
    def device(self) -> torch.device:
        return self.model.embedding.weight.device

    @cached_property
    def double(self) -> LoopedLM:
        """The same model in float64."""
        return copy.deepcopy(self.model).double()

    @cached_property
    def double_without_eps(self) -> LoopedLM:
        """The model in float64 with eps = 0 in every norm: what the lemmas speak of."""
        return without_eps(self.double)

    @cached_property
    def occurrences(self) -> Ids:
        """How often each id stands in the training split: shape (V,)."""
        return self.count(self.tokens.split("train"))

    def count(self, stream: NDArray[np.unsignedinteger]) -> Ids:
        """How often each id of the vocabulary stands in a stream: shape (V,)."""
        counts = np.zeros(self.tokens.vocab_size, dtype=np.int64)
        for at in range(0, len(stream), COUNTED):
            counts += np.bincount(stream[at : at + COUNTED], minlength=len(counts))
        return counts

    def sample(self, split: str, budget: int) -> Ids:
        """`windows` of a split, of the length that the model was trained with."""
        return windows(self.tokens.split(split), self.spec.model.context, budget)

    def chunks(self, rows: Ids, tokens: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """Inputs and targets (B, T) of `rows` (n, T + 1) in turn, about `tokens` ids at a time.

        Without `tokens`: what a core's cache holds, or what keeps a GPU busy.
        """
        tokens = tokens or (2048 if self.device.type == "cpu" else 16384)
        size = max(1, tokens // (rows.shape[1] - 1))
        for at in range(0, len(rows), size):
            ids = torch.from_numpy(rows[at : at + size]).to(self.device)
            yield ids[:, :-1], ids[:, 1:]


class _Limited:
    """Settings of which only some may be read."""

    def __init__(self, settings: Measurement, reader: str, names: Collection[str]) -> None:
        self._settings, self._reader, self._names = settings, reader, names

    def __getattr__(self, name: str) -> Any:
        if name not in self._names:
            raise AttributeError(
                f"measurement {self._reader} reads the setting {name}, which its declaration in "
                f"declared/{self._reader}.py does not name under `settings`"
            )
        return getattr(self._settings, name)


def token_nll(model: LoopedLM, state: Tensor, k: int, targets: Tensor) -> Tensor:
    """NLL in nats of each target (...) from H_k (..., d): shape of targets, float32 or better."""
    return token_cross_entropy(model.embedding.weight, model.readout(state, k), targets)


def without_eps(model: LoopedLM) -> LoopedLM:
    """A copy of `model` with eps = 0 in the stack's norms and in the readout."""
    exact = copy.deepcopy(model)
    for module in exact.modules():
        if isinstance(module, RMSNorm):
            module.eps = 0.0
    exact.readout.eps = 0.0
    exact.spec = exact.spec.model_copy(update={"norm_eps": 0.0})
    return exact


def windows(stream: NDArray[np.unsignedinteger], length: int, budget: int) -> Ids:
    """Windows of `length` inputs spread evenly over a stream: int64 of shape (n, length + 1).

    Inputs are the columns but the last, targets the columns but the first. They do not overlap but
    for the one id that is a target of one and an input of the next. n is budget // length, at least
    1, at most what the stream holds; a stream shorter than one window gives one shorter window.
    """
    if len(stream) < 2:
        raise BlindspotError(
            f"a split of {len(stream)} tokens has no target to predict; use a larger corpus"
        )
    length = min(length, len(stream) - 1)
    room = (len(stream) - 1) // length
    n = min(max(1, budget // length), room)
    starts = np.arange(n) * room // n * length
    return np.asarray(stream[starts[:, None] + np.arange(length + 1)], dtype=np.int64)


def number(x: float, digits: int = 9) -> str:
    """A float as CSV text; nine digits bring a float32 back, 17 a float64."""
    return f"{x:.{digits}g}"
