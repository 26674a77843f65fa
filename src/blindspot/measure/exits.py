"""Cross-entropy at every exit: K depths and some beyond, all read from one pass over a window.

Windows of the training context slide over the split by `length - min_context` tokens. Two
protocols read those same windows:

    full             a window scores only the targets that no earlier one scored, so each target
                     counts once, and each (but at the start) sees at least `min_context` tokens
    release-figure   20 batches x 8 windows: of the first 160 windows every target counts, with as
                     little as one token of context, and twice where windows overlap

`exits.csv`, one row a split x protocol x depth:

    k               the exit; `trained_k` is the K of training: greater k are extrapolation. A
                    final-only-rms readout is raw for k < trained_k and normalized from there on.
    tokens          targets that were counted
    words, bytes    white-space separated words that begin in the text of those targets, and its
                    UTF-8 length; empty where the tokenizer lost the text and not all of it counts
    nll             sum of negative log-likelihoods, nats, in float64
    ce              nll / tokens, nats a token
    ppl             exp(ce)             `inf` where that overflows
    word_ppl        exp(nll / words)
    bits_per_byte   nll / ln 2 / bytes
"""

import math
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from blindspot.measure.subject import Row, Subject, number
from blindspot.model import LoopedLM
from blindspot.tokens import Tokens
from blindspot.windows import scoring

SPLITS = ("validation", "test")
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
    "trained_k",
)
FILES = {"exits": COLUMNS}
#: Windows of protocol `release-figure`.
RELEASE_WINDOWS = 20 * 8
#: Logits of one slice, in numbers: evaluation's memory grows neither with batch nor with depths.
SLICE = 2**24


class Size(NamedTuple):
    """Counts of a scored text; words and bytes are None where they are not known."""

    tokens: int
    words: int | None
    bytes: int | None


def measure(subject: Subject) -> dict[str, list[Row]]:
    """`exits.csv` of validation and test."""
    settings, loops = subject.settings, subject.loops
    depths = sorted({*range(1, loops + 1), *(k for k in settings.depths_beyond if k > loops)})
    rows: list[Row] = []
    for split in SPLITS:
        stream = subject.tokens.split(split)
        plan = scoring(len(stream), subject.spec.model.context, settings.min_context)
        sums = nll_by_depth(subject, stream, plan, depths)
        for protocol, nll in sums.items():
            size = _size(subject.tokens, split, plan, protocol)
            rows += [
                row(split, protocol, k, float(sum_), size, loops)
                for k, sum_ in zip(depths, nll, strict=True)
            ]
    return {"exits": rows}


def token_nll(model: LoopedLM, state: Tensor, k: int, targets: Tensor) -> Tensor:
    """NLL in nats of each target (...) from H_k (..., d): shape of targets, float32 or better."""
    flat, wanted = state.flatten(0, -2), targets.flatten()
    size = max(1, SLICE // model.spec.vocab_size)
    pieces = []
    for part, answer in zip(flat.split(size), wanted.split(size), strict=True):
        logits = model.logits(part, k)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        pieces.append(F.cross_entropy(logits, answer, reduction="none"))
    return torch.cat(pieces).view(targets.shape)


@torch.no_grad()
def nll_by_depth(
    subject: Subject,
    stream: NDArray[np.unsignedinteger],
    plan: NDArray[np.int64],
    depths: list[int],
) -> dict[str, NDArray[np.float64]]:
    """Sums of NLL (nats) by protocol, shape (depths,), of the windows of `plan` (see `scoring`)."""
    sums = {name: np.zeros(len(depths)) for name in ("full", "release-figure")}
    # All windows are equally long, but for the only one of a stream that is shorter than that.
    length = int(plan[0, 2] - plan[0, 0]) - 1
    windows = np.asarray(stream[plan[:, :1] + np.arange(length + 1)], dtype=np.int64)
    first, done = plan[:, 1] - plan[:, 0] - 1, 0
    for inputs, targets in subject.chunks(windows):
        number_ = np.arange(done, done + len(inputs))
        done += len(inputs)
        once = torch.from_numpy(np.arange(length) >= first[number_, None]).to(inputs.device)
        figure = torch.from_numpy(number_ < RELEASE_WINDOWS).to(inputs.device)[:, None]
        needed = once | figure
        states = subject.model(inputs, loops=depths[-1])
        for at, k in enumerate(depths):
            nll = token_nll(subject.model, states[k][needed], k, targets[needed]).double()
            sums["full"][at] += float(nll[once[needed]].sum())
            sums["release-figure"][at] += float(nll[figure.expand_as(once)[needed]].sum())
    return sums


def _size(tokens: Tokens, split: str, plan: NDArray[np.int64], protocol: str) -> Size:
    counts, stream = tokens.counts(split), tokens.split(split)
    if protocol == "full" and plan[-1, 2] == len(stream):
        return Size(len(stream) - 1, counts["words"], counts["bytes"])
    if protocol == "full":
        spans = [(1, int(plan[-1, 2]))]
    else:
        spans = [(int(s) + 1, int(e)) for s, _, e in plan[:RELEASE_WINDOWS]]
    scored = sum(end - start for start, end in spans)
    if tokens.meta["tokenizer"] != "bpe":
        return Size(scored, None, None)
    # Here alone, so that what else measures runs where torch is all there is.
    from blindspot import tokenizer

    model = tokenizer.load(tokens.folder / "tokenizer.json")
    # In the byte alphabet of such a vocabulary one character is one byte.
    widths = np.zeros(tokens.vocab_size, dtype=np.int64)
    for token, at in model.get_vocab(with_added_tokens=False).items():
        widths[at] = len(token)
    words = 0
    for start, end in spans:
        before, *ids = stream[start - 1 : end].tolist()
        text = model.decode(ids, skip_special_tokens=False)
        words += len(text.split())
        if start > 1 and not text[:1].isspace():
            words -= not model.decode([before])[-1:].isspace()  # that word began earlier
    return Size(scored, words, int(sum(widths[stream[start:end]].sum() for start, end in spans)))


def row(split: str, protocol: str, k: int, nll: float, size: Size, trained: int) -> Row:
    """One row of `exits.csv` from sums."""
    tokens, words, length = size
    return [
        split,
        protocol,
        k,
        tokens,
        "" if words is None else words,
        "" if length is None else length,
        number(nll, 17),
        number(nll / tokens, 17),
        number(_exp(nll / tokens), 17),
        number(_exp(nll / words), 17) if words else "",
        number(nll / math.log(2) / length, 17) if length else "",
        trained,
    ]


def _exp(x: float) -> float:
    """exp(x), infinite where a float64 cannot hold it (a hopeless exit must not lose the rest)."""
    return math.inf if x > 709 or math.isnan(x) else math.exp(x)
