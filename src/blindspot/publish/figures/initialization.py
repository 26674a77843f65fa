"""Figure: is it the initialization? One column a size and initialization, the same cells in all."""

from math import exp

import pandas as pd

from blindspot.collect.collected import Collected
from blindspot.collect.stats import over_seeds
from blindspot.publish.figures.depth import exits, live_limits
from blindspot.publish.figures.panels import (
    DODGE,
    Panels,
    lines,
    log_axis,
    log_limits,
    loop_axis,
    nothing,
    off_scale,
    panels,
    unigram,
)


def initialization(collected: Collected) -> Panels:
    """Norm by loop, and perplexity by exit, under each initialization."""
    pairs = collected.initializations
    if not pairs:
        return nothing(collected, "this study has one initialization")
    labels = list(dict.fromkeys(label for options in pairs.values() for label in options))
    # A size may plan no cell of one of the initializations.
    columns = [
        (size, label)
        for size in collected.sizes
        for label in labels
        if any((size, options.get(label)) in collected.planned for options in pairs.values())
    ]
    titles = [
        f"{size}, {'default' if label == 'default' else f'N(0, {label}²)'}"
        for size, label in columns
    ]
    n = collected.frame("norms").query("split == 'validation'")
    norm = over_seeds(n, ["size", "cell", "k"], ["l2_mean"], log=["l2_mean"])
    ppl = collected.trained(exits(collected))
    figure = panels(collected, titles, [1.9, 2.0])
    limits = log_limits(norm["l2_mean"])
    for column, (size, label) in enumerate(columns):
        # The partner is drawn in the look of the cell that it stands beside.
        names = {options[label]: base for base, options in pairs.items() if label in options}
        top, bottom = figure.axes[:, column]
        part = _renamed(norm[norm["size"] == size], names)
        top.set_yscale("log")
        top.set_ylim(limits)
        k = part["k"]
        lines(top, part[k <= 1], "k", "l2_mean", figure.style, None, DODGE, linestyle=":")
        lines(top, part[k >= 1], "k", "l2_mean", figure.style, "interval", DODGE)
        top.set_ylim(limits)
        loop_axis(top, list(range(collected.deepest + 1)), collected.deepest)
        off_scale(top, part, "k", "l2_mean", figure.style)
        log_axis(top)
        part = _renamed(ppl[ppl["size"] == size], names)
        bottom.set_ylim(live_limits(collected, part))
        held = bottom.get_ylim()
        lines(bottom, part, "k", "ppl", figure.style, "interval", DODGE)
        bottom.set_ylim(held)
        loop_axis(bottom, list(range(1, collected.deepest + 1)), collected.deepest)
        off_scale(bottom, part, "k", "ppl", figure.style)
        top.set(xlabel="", ylabel="")
        bottom.set(xlabel="after loop k", ylabel="")
    figure.axes[0, 0].set_ylabel("norm of the state")
    figure.axes[1, 0].set_ylabel("perplexity")
    figure.legend(list(pairs), unigram(figure.axes[1], exp(collected.baseline("unigram"))))
    return figure


def _renamed(frame: pd.DataFrame, names: dict[str, str]) -> pd.DataFrame:
    own = frame[frame["cell"].isin(list(names))]
    return own.assign(cell=own["cell"].map(names))
