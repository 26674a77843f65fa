"""Figures of the training itself."""

import pandas as pd
from matplotlib.ticker import FuncFormatter, MaxNLocator

from blindspot.collect.collected import Collected
from blindspot.collect.stats import over_seeds
from blindspot.publish.figures.panels import (
    DOTS,
    NOTE,
    Panels,
    key,
    lines,
    log_axis,
    log_limits,
    panels,
    plain,
    step_axis,
    unigram,
)
from blindspot.publish.matched import costs

#: The first part of training, where all curves fall steeply, may leave the panel by its top.
SETTLED = 0.2


def training_curves(collected: Collected) -> Panels:
    """Validation CE at the last loop, by optimizer step and by training FLOPs."""
    points = costs(collected)
    points = points[points["step"] > 0]
    # FLOPs are a function of cell and step, so that seeds share them.
    mean = over_seeds(points, ["size", "cell", "step", "FLOPs"], ["ce"])
    known = collected.baseline("unigram")
    figure = panels(collected, collected.sizes, [1.9, 1.9])
    for row, x in enumerate(("step", "FLOPs")):
        for ax, size in zip(figure.axes[row], collected.sizes, strict=True):
            part = mean[mean["size"] == size]
            ax.set_yscale("log")
            ax.set_ylim(settled_limits(part, known))
            held = ax.get_ylim()
            lines(ax, part, x, "ce", figure.style)
            ax.set_ylim(held)
            log_axis(ax)
            if x == "step":
                step_axis(ax, part["step"])
            else:
                budget = part.groupby("cell")["FLOPs"].max().min()
                ax.axvline(budget, color=NOTE, linewidth=0.9, linestyle=DOTS, zorder=1)
                ax.set_xlim(0, part["FLOPs"].max() * 1.02)
                ax.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
                ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: plain(value)))
                ax.set_xlabel("training FLOPs")
            ax.set_ylabel("")
        figure.axes[row, 0].set_ylabel(f"validation CE at loop {collected.depth}")
    extra = [key("equal FLOPs", linestyle=DOTS), *unigram(figure.axes.flat, known)]
    figure.legend(mean["cell"], extra)
    return figure


def settled_limits(part: pd.DataFrame, unigram: float) -> tuple[float, float]:
    """Limits of CE that show the end of training and most of the way there, and a unigram model
    (NaN: not known) that is better than that."""
    late = part.loc[part["step"] >= SETTLED * part["step"].max(), "ce"]
    better = pd.Series([unigram] if unigram < late.min() else [], dtype=float)
    return log_limits(pd.concat([late, better]) if len(better) else late)
