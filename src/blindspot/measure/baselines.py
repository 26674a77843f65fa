"""What predictors that read no context score: the least that a perplexity must be held against.

    uniform     every id of the vocabulary of V is as likely: ln V
    unigram     an id is as likely as it is frequent among the tokens of the training split, counts
                smoothed by one: p(i) = (count_i + 1) / (N + V)

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
    """How often each id of a stream is a target: all but the first, the start token."""
    found = counts.copy()
    found[int(stream[0])] -= 1
    return found


def unigram(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Nats that each id costs where `counts` (V,) were seen, smoothed by one."""
    return np.log(counts.sum() + len(counts)) - np.log(counts + 1.0)
