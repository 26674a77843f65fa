"""How a stream of tokens is read: in training by overlapping windows in random order, in scoring
by windows that make every token a target exactly once.

A stream of N ids has targets 1 .. N - 1: id 0 starts the stream and is never predicted. A window
that starts at s reads ids s .. s + length - 1 and predicts ids s + 1 .. s + length.
"""

import numpy as np
from numpy.typing import NDArray

from blindspot.config.spec import Windows
from blindspot.errors import BlindspotError

Ids = NDArray[np.int64]


def count(tokens: int, windows: Windows) -> int:
    """Windows in a stream of `tokens` ids: floor((tokens - 1 - length) / stride) + 1.

    They start at 0, stride, 2 stride, ... and none crosses the stream's end. Raises
    `BlindspotError` when not one fits, that is when tokens < length + 1.
    """
    if tokens < windows.length + 1:
        raise BlindspotError(
            f"windows.length: {windows.length} needs a split of at least {windows.length + 1} "
            f"tokens, this one has {tokens}; use a shorter length, or a larger corpus"
        )
    return (tokens - 1 - windows.length) // windows.stride + 1


def order(n: int, seed: int, epoch: int) -> Ids:
    """A permutation of 0 .. n - 1, a function of (seed, epoch) alone.

    Sorts the raw output of PCG64: numpy keeps that stream the same across versions, which it does
    not promise for its shuffles.
    """
    bits = np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(epoch,)))
    return np.argsort(bits.random_raw(n), kind="stable").astype(np.int64)


class Batches:
    """Training batches by step: `batches[step]` is int64 of shape (batch / world, length + 1).

    Row j of step i is window number i * batch + j of the epochs laid end to end, so there is no
    ragged step, and the step is all that a resumed run needs to know. Inputs are the columns but
    the last, targets the columns but the first. With `world` > 1, `rank` gets its own rows of the
    same batch, so the number of devices does not change what a step learns from.
    """

    def __init__(
        self,
        tokens: NDArray[np.unsignedinteger],
        windows: Windows,
        batch: int,
        seed: int,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        if batch % world:
            raise BlindspotError(
                f"batch: {batch} sequences cannot be shared equally by {world} devices; use a "
                f"number of devices that divides it"
            )
        self.n = count(len(tokens), windows)
        self._tokens, self._windows, self._batch, self._seed = tokens, windows, batch, seed
        self._rows = np.arange(rank * (batch // world), (rank + 1) * (batch // world))
        self._orders: dict[int, Ids] = {}

    def __getitem__(self, step: int) -> Ids:
        epochs, places = np.divmod(step * self._batch + self._rows, self.n)
        needed = np.unique(epochs).tolist()
        self._orders = {
            e: self._orders[e] if e in self._orders else order(self.n, self._seed, e)
            for e in needed
        }
        numbers = np.empty_like(places)
        for epoch in needed:
            here = epochs == epoch
            numbers[here] = self._orders[epoch][places[here]]
        columns = np.arange(self._windows.length + 1)
        where = numbers[:, None] * self._windows.stride + columns
        return np.asarray(self._tokens[where], dtype=np.int64)


def scoring(tokens: int, length: int, min_context: int) -> Ids:
    """Windows of protocol `full`: int64 of shape (n, 3), rows (start, first, end).

    A row reads ids start .. end - 2 (at most `length` of them) and scores targets first .. end - 1.
    Every target 1 .. tokens - 1 is scored exactly once and sees more than `min_context` ids of its
    window before it, or all there are. All windows read exactly `length` ids, unless the stream is
    shorter than one. They advance by length - min_context.
    """
    if not 0 <= min_context < length:
        raise BlindspotError(
            f"measurement.min_context: {min_context} leaves nothing to score in windows of "
            f"{length} tokens; use 0 to {length - 1}"
        )
    if tokens < 2:
        return np.empty((0, 3), dtype=np.int64)
    stride = length - min_context
    ends = np.append(np.arange(length + 1, tokens, stride, dtype=np.int64), tokens)
    firsts = np.concatenate([[1], ends[:-1]])
    starts = np.maximum(0, ends - 1 - length)
    return np.stack([starts, firsts, ends], axis=1)
