"""What the evaluated text leaves open of quantities that are sums of cross-entropies.

An interval over seeds says nothing of the text, on which all runs are scored alike. Beside it
stands the standard error of the same number, on test, when blocks of windows are drawn anew
(collect/bootstrap.py).
"""

from collections.abc import Callable, Sequence
from math import nan

from blindspot.collect import bootstrap
from blindspot.publish.frames import Frames

#: A sign, a cell and an exit.
Term = tuple[int, str, int]


def _gain(f: Frames, cell: str, sign: int = 1) -> list[Term]:
    return [(sign, cell, 1), (-sign, cell, f.loops([cell]))]


#: The cross-entropies whose signed sum a quantity is.
TERMS: dict[str, Callable[[Frames, Sequence[str], int | None], list[Term]]] = {
    "ce": lambda f, cells, at: [(1, cells[0], at or f.loops(cells))],
    "gain-to-last": lambda f, cells, _: _gain(f, cells[0]),
    "gain-over": lambda f, cells, _: [*_gain(f, cells[0]), *_gain(f, cells[1], -1)],
}


def error(quantity: str, f: Frames, size: str, cells: Sequence[str], at: int | None) -> float:
    """Standard error over blocks of the text, nats; NaN for quantities of another kind, and where
    no run has what it needs."""
    if quantity not in TERMS:
        return nan
    terms = TERMS[quantity](f, cells, at)
    blocks = [f.blocks(size, cell, k) for _, cell, k in terms]
    seeds = set.intersection(*(set(own) for own in blocks))
    if not seeds:
        return nan
    signs = [sign for sign, _, _ in terms]
    return bootstrap.signed(
        {s: [(sign, own[s]) for sign, own in zip(signs, blocks, strict=True)] for s in seeds}
    ).se
