"""Cross-entropy at every exit: depths 1..K and some beyond, all from one forward pass per window.

There are three protocols (docs/perplexity.md). A window that several of them use is read once:

    full             windows of the training context that advance by `length - min_context`. Each
                     window scores only the targets that no earlier window scored, so each target
                     counts once. Except at the start of the text, each target has at least
                     `min_context` tokens of context
    paper            the windows of training, in order. Every target of every window counts, even
                     with one token of context; targets away from both ends of the text count
                     length / stride times
    release-figure   the first 20 x 8 windows that do not overlap; every target counts
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from blindspot.config.spec import Windows
from blindspot.data.tokens import Tokens
from blindspot.data.windows import count, scoring
from blindspot.declared.exits import PROTOCOLS
from blindspot.measure.subject import Row, Subject, number, token_nll

SPLITS = ("validation", "test")
#: Windows of protocol `release-figure`.
RELEASE_WINDOWS = 20 * 8


class Size(NamedTuple):
    """Counts of a scored text. Where words or bytes are 0, the columns derived from that count
    stay empty."""

    tokens: int
    words: int
    bytes: int
    unk: int = 0
    comparable: bool = True


def measure(subject: Subject) -> dict[str, list[Row]]:
    """The rows of `exits.csv`, for validation and test."""
    settings, loops = subject.settings, subject.loops
    depths = sorted({*range(1, loops + 1), *(k for k in settings.depths_beyond if k > loops)})
    rows: list[Row] = []
    for split in SPLITS:
        stream = subject.tokens.split(split)
        plan = plan_of(len(stream), subject.spec.windows, settings.min_context)
        sums = nll_by_depth(subject, stream, plan, depths)
        for protocol, nll in sums.items():
            size = size_of(subject.tokens, split, plan, protocol)
            rows += [
                row(split, protocol, k, float(sum_), size, loops)
                for k, sum_ in zip(depths, nll, strict=True)
            ]
    return {"exits": rows}


class Plan(NamedTuple):
    """Windows in the order of their starts. Each is read once, however many protocols use it.

    A window reads ids start .. start + length - 1 and predicts the ids one position later. `first`
    has, for each protocol, the position in each window of the first target that counts, or
    `length` where none does; shape (n,).
    """

    length: int
    starts: NDArray[np.int64]
    first: dict[str, NDArray[np.int64]]


def plan_of(tokens: int, windows: Windows, min_context: int) -> Plan:
    """The windows of all protocols over a stream of `tokens` ids."""
    full = scoring(tokens, windows.length, min_context)
    length = int(full[0, 2] - full[0, 0]) - 1
    paper = figure = full[:, 0]
    if tokens > windows.length:
        paper = np.arange(count(tokens, windows)) * windows.stride
        apart = windows.model_copy(update={"stride": windows.length})
        figure = np.arange(min(count(tokens, apart), RELEASE_WINDOWS)) * windows.length
    starts = np.union1d(full[:, 0], np.union1d(paper, figure))
    first = {name: np.full(len(starts), length) for name in PROTOCOLS}
    first["full"][np.searchsorted(starts, full[:, 0])] = full[:, 1] - full[:, 0] - 1
    first["paper"][np.searchsorted(starts, paper)] = 0
    first["release-figure"][np.searchsorted(starts, figure)] = 0
    return Plan(length, starts, first)


@torch.no_grad()
def nll_by_depth(
    subject: Subject, stream: NDArray[np.unsignedinteger], plan: Plan, depths: list[int]
) -> dict[str, NDArray[np.float64]]:
    """For each protocol, the sums of NLL (nats) at each depth, shape (depths,)."""
    sums = {name: np.zeros(len(depths)) for name in plan.first}
    windows = np.asarray(stream[plan.starts[:, None] + np.arange(plan.length + 1)], dtype=np.int64)
    at, done = np.arange(plan.length), 0
    for inputs, targets in subject.chunks(windows):
        here = slice(done, done + len(inputs))
        done += len(inputs)
        counted = {
            name: torch.from_numpy(at >= first[here, None]).to(inputs.device)
            for name, first in plan.first.items()
        }
        needed = torch.stack(list(counted.values())).any(0)
        states = subject.model(inputs, loops=depths[-1])
        for place, k in enumerate(depths):
            nll = token_nll(subject.model, states[k][needed], k, targets[needed]).double()
            for name, mask in counted.items():
                sums[name][place] += float(nll[mask[needed]].sum())
    return sums


def size_of(tokens: Tokens, split: str, plan: Plan, protocol: str) -> Size:
    """The tokens, words and bytes of a split under a protocol. A target that is scored several
    times counts as often."""
    counts, stream, spans = tokens.counts(split), tokens.split(split), tokens.spans(split)
    unk = tokens.meta["unk"]
    parts = np.zeros((len(stream) + 1, 3), dtype=np.int64)
    parts[1:, :2] = np.cumsum(spans, axis=0, dtype=np.int64)
    parts[1:, 2] = np.cumsum(np.asarray(stream) == unk) if unk is not None else 0
    ends = plan.starts + plan.length + 1
    begins = plan.starts + 1 + plan.first[protocol]
    length, words, unknown = (parts[ends] - parts[begins]).sum(axis=0).tolist()
    original = counts["words"] + _line_ends(tokens, counts)
    return Size(
        int((ends - begins).sum()),
        round(words * original / max(1, counts["words"])),
        length,
        unknown,
        bool(tokens.meta["lossless"]),
    )


def _line_ends(tokens: Tokens, counts: Mapping[str, Any]) -> int:
    """Line ends that count as words: published WikiText results count one end-of-line token for
    each line."""
    corpus = tokens.meta["data"]["corpus"]
    return int(counts.get("rows", 0)) if corpus.get("name") == "Salesforce/wikitext" else 0


def row(split: str, protocol: str, k: int, nll: float, size: Size, trained: int) -> Row:
    """One row of `exits.csv` from sums."""
    return [
        split,
        protocol,
        k,
        size.tokens,
        size.words or "",
        size.bytes or "",
        number(nll, 17),
        number(nll / size.tokens, 17),
        number(_exp(nll / size.tokens), 17),
        number(_exp(nll / size.words), 17) if size.words else "",
        number(nll / math.log(2) / size.bytes, 17) if size.bytes else "",
        trained,
        number(size.unk / size.tokens, 17),
        int(size.comparable),
    ]


def _exp(x: float) -> float:
    """exp(x), infinite where a float64 cannot hold it (a hopeless exit must not lose the rest)."""
    return math.inf if x > 709 or math.isnan(x) else math.exp(x)
