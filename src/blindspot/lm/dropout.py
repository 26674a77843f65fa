"""Dropout masks as a pure function of (seed, step, row of the batch, loop, layer, place).

There is no generator with a state: a mask is a hash of its key and of the entry's number. So masks
are the same in a compiled step and a plain one, when a layer is computed again for the backward
pass, in a resumed run, on every device, and on however many devices share the batch.

A key is 64 random bits. Entries 2 i and 2 i + 1 are the two halves of a 32-bit word: key and i
through the mixing function `lowbias32` of C. Wellons. An entry is dropped where its 16 bits are
below rate x 2^16, so rates are multiples of 2^-16.

On the CPU this is numpy in an operator that compilers treat as opaque; elsewhere it is the same
integer arithmetic in torch, which a compiler fuses with the code that uses the mask.
"""

import numpy as np
import torch
from torch import Tensor

from blindspot.config.spec import Place

LEVELS = 2**16
#: Words that are made at a time: what a core's cache holds.
WORDS = 2**18
#: The places of a layer, in the order of their keys.
LAYER: tuple[Place, ...] = ("attention", "attention-output", "mlp-output")


def step_keys(seed: int, step: int, rows: range, loops: int, layers: int) -> Tensor:
    """Keys of one step for `rows` of the whole batch: int32 (rows, 1 + loops layers 3, 2)."""
    slots = 1 + loops * layers * len(LAYER)
    words = np.random.Philox(key=np.array([seed, step], np.uint64)).random_raw(rows.stop * slots)
    keys = words.view(np.int32).reshape(rows.stop, slots, 2)[rows.start :]
    return torch.from_numpy(keys)


def embedding_key(keys: Tensor | None) -> Tensor | None:
    """The key (B, 2) of the embedding sum's mask, of those of `step_keys`."""
    return None if keys is None else keys[:, 0]


def loop_keys(keys: Tensor | None, k: int, layers: int) -> Tensor | None:
    """The keys (B, layers, 3, 2) of loop k (from 1), of those of `step_keys`."""
    if keys is None:
        return None
    size = layers * len(LAYER)
    return keys[:, 1 + (k - 1) * size : 1 + k * size].unflatten(1, (layers, len(LAYER)))


def key_at(keys: Tensor | None, place: Place) -> Tensor | None:
    """The key (B, 2) of a place, of those of its layer (B, 3, 2)."""
    return None if keys is None else keys[:, LAYER.index(place)]


def threshold(rate: float) -> int:
    """Of 2^16 values, how many drop an entry."""
    return round(rate * LEVELS)


def scale(rate: float) -> float:
    """What a kept entry is multiplied by: 1 / the exact probability of being kept."""
    return LEVELS / (LEVELS - threshold(rate))


def kept(key: Tensor, entries: int, rate: float) -> Tensor:
    """1 where an entry is kept, else 0: uint8 (B, entries), of keys (B, 2)."""
    if key.device.type == "cpu":
        mask: Tensor = torch.ops.blindspot.kept(key, entries, threshold(rate))
        return mask
    return kept_in_torch(key, entries, threshold(rate))


def dropped(x: Tensor, key: Tensor | None, rate: float) -> Tensor:
    """x (B, ...) with entries dropped and the others scaled; x itself without a key or rate."""
    if key is None or threshold(rate) == 0:
        return x
    mask = kept(key, x[0].numel(), rate).view(x.shape)
    return x * (mask.to(x.dtype) * scale(rate))


def _kept_on_cpu(key: Tensor, entries: int, below: int) -> Tensor:
    keys = key.contiguous().numpy().view(np.uint32)
    n = -(-entries // 2)
    result = np.empty((len(keys), 2 * n), dtype=np.bool_)
    numbers, rows = np.arange(n, dtype=np.uint32), max(1, WORDS // max(n, 1))
    spare = np.empty((min(rows, len(keys)), n), dtype=np.uint32)
    for start in range(0, len(keys), rows):
        k = keys[start : start + rows]
        x, y = numbers + k[:, :1], spare[: len(k)]
        x ^= np.right_shift(x, 16, out=y)
        x *= np.uint32(0x21F0AAAD)
        x ^= np.right_shift(x, 15, out=y)
        x ^= k[:, 1:]
        x *= np.uint32(0xD35A2D97)
        x ^= np.right_shift(x, 15, out=y)
        np.greater_equal(x.view(np.uint16), below, out=result[start : start + rows])
    return torch.from_numpy(result[:, :entries].view(np.uint8)).contiguous()


def kept_in_torch(key: Tensor, entries: int, below: int) -> Tensor:
    """The same in torch, whose int32 products keep their low 32 bits as C's unsigned ones do."""
    n = -(-entries // 2)
    x = torch.arange(n, dtype=torch.int32, device=key.device) + key[:, :1]
    x = (x ^ (x >> 16 & 0xFFFF)) * 0x21F0AAAD
    x = (x ^ (x >> 15 & 0x1FFFF) ^ key[:, 1:]) * (0xD35A2D97 - 2**32)
    x = x ^ (x >> 15 & 0x1FFFF)
    halves = torch.stack([x & 0xFFFF, x >> 16 & 0xFFFF], dim=-1).flatten(1)
    return (halves[:, :entries] >= below).to(torch.uint8)


_library = torch.library.Library("blindspot", "FRAGMENT")
_library.define("kept(Tensor key, int entries, int below) -> Tensor")
_library.impl("kept", _kept_on_cpu, "CPU")


@torch.library.register_fake("blindspot::kept", lib=_library)
def _kept_fake(key: Tensor, entries: int, below: int) -> Tensor:
    return key.new_empty((key.shape[0], entries), dtype=torch.uint8)
