"""Cross-entropy at every depth: each token of a split scored once, all depths from one pass.

Protocol `full`: windows of the training context slide over the split; a window scores only the
tokens that no earlier one scored, and each of those (but at the very start) sees at least
`min_context` earlier tokens. Sums run over tokens in float64 and are divided once.

    nll             sum of negative log-likelihoods, nats
    ce              nll / tokens                    nats a token
    ppl             exp(ce)                         `inf` where that overflows
    word_ppl        exp(nll / words)                words: white-space separated, of the text
    bits_per_byte   nll / ln 2 / bytes              bytes: UTF-8, of the text
"""

import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from blindspot.model import LoopedLM
from blindspot.windows import scoring

COLUMNS = (
    "split",
    "protocol",
    "k",
    "tokens",
    "words",
    "bytes",
    "nll",
    "ce",
    "ppl",
    "word_ppl",
    "bits_per_byte",
)
#: Logits of one slice, in numbers: evaluation's memory grows neither with batch nor with depths.
SLICE = 2**24


def token_nll(model: LoopedLM, state: Tensor, k: int, targets: Tensor) -> Tensor:
    """NLL in nats of each target (B, T) from H_k (B, T, d): shape (B, T), float32 or better."""
    flat, wanted = state.flatten(0, -2), targets.flatten()
    size = max(1, SLICE // model.spec.vocab_size)
    pieces = []
    for part, answer in zip(flat.split(size), wanted.split(size), strict=True):
        logits = model.logits(part, k)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        pieces.append(F.cross_entropy(logits, answer, reduction="none"))
    return torch.cat(pieces).view(targets.shape)


def batches(
    stream: np.ndarray, length: int, min_context: int, size: int
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Protocol `full` as batches of equal windows: inputs, targets, scored, each (B, T).

    `scored` is true where a target counts; over all batches each target of the stream counts once.
    """
    plan = scoring(len(stream), length, min_context)
    lengths = sorted({end - start for start, _, end in plan}, reverse=True)
    for span in lengths:
        group = [w for w in plan if w[2] - w[0] == span]
        for at in range(0, len(group), size):
            chosen = group[at : at + size]
            rows = torch.from_numpy(
                np.stack([stream[start : end + 1] for start, _, end in chosen]).astype(np.int64)
            )
            first = torch.tensor([first - start for start, first, _ in chosen])
            scored = torch.arange(span)[None, :] >= first[:, None]
            yield rows[:, :-1], rows[:, 1:], scored


@torch.no_grad()
def nll_by_depth(
    model: LoopedLM, stream: np.ndarray, depths: int, min_context: int, size: int
) -> tuple[np.ndarray, int]:
    """Sum of NLL (nats, float64) at k = 1..depths, shape (depths,), and the number of targets."""
    device = model.embedding.weight.device
    total, tokens = torch.zeros(depths, dtype=torch.float64), 0
    for inputs, targets, scored in batches(stream, model.spec.context, min_context, size):
        states = model(inputs.to(device), loops=depths)
        targets, scored = targets.to(device), scored.to(device)
        for k in range(1, depths + 1):
            nll = token_nll(model, states[k][scored], k, targets[scored])
            total[k - 1] += nll.double().sum().cpu()
        tokens += int(scored.sum())
    return total.numpy(), tokens


def row(split: str, protocol: str, k: int, nll: float, tokens: int, words: int, size: int) -> list:
    """One row of `exits.csv` from sums; `size` is the text's length in bytes."""
    return [
        split,
        protocol,
        k,
        tokens,
        words,
        size,
        f"{nll:.17g}",
        f"{nll / tokens:.17g}",
        f"{_exp(nll / tokens):.17g}",
        f"{_exp(nll / words):.17g}",
        f"{nll / math.log(2) / size:.17g}",
    ]


def _exp(x: float) -> float:
    """exp(x), infinite where a float64 cannot hold it (a hopeless exit must not lose the rest)."""
    return math.inf if x > 709 or math.isnan(x) else math.exp(x)
