"""The scores of predictors that read no context: the minimum that any perplexity must beat.

    uniform     all V ids of the vocabulary are equally likely: ln V
    unigram     an id is as likely as it is frequent among the tokens of the training split, with
                add-one smoothing: p(i) = (count_i + 1) / (N + V)

Targets are those of protocol `full` (exits.py): each token of the split once.
"""

import math

import numpy as np
from numpy.typing import NDArray

from blindspot.measure.subject import Row, Subject, number

SPLITS = ("validation", "test")


def measure(subject: Subject) -> dict[str, list[Row]]:
    """`baselines.csv`."""
    vocab = subject.tokens.vocab_size
    trained = targets(subject.occurrences, subject.tokens.split("train"))
    costs = {"uniform": np.full(vocab, math.log(vocab)), "unigram": unigram(trained)}
    rows: list[Row] = []
    for split in SPLITS:
        stream = subject.tokens.split(split)
        counts = targets(subject.count(stream), stream)
        total = int(counts.sum())
        for name, cost in costs.items():
            nll = float(counts @ cost)
            values = [number(x, 17) for x in (nll, nll / total, math.exp(nll / total))]
            rows.append([split, name, total, *values])
    return {"baselines": rows}


def targets(counts: NDArray[np.int64], stream: NDArray[np.unsignedinteger]) -> NDArray[np.int64]:
    """How often each id of a stream is a target. The first token (the start token) is none."""
    found = counts.copy()
    found[int(stream[0])] -= 1
    return found


def unigram(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """The cost of each id in nats: -ln p under add-one smoothing of `counts` (V,)."""
    return np.log(counts.sum() + len(counts)) - np.log(counts + 1.0)
