"""A figure of any file with rows by loop: the catalogue names its columns (`Item.values`)."""

from blindspot.collect.collected import Collected
from blindspot.collect.stats import over_seeds
from blindspot.publish.figures.panels import DODGE, Panels, lines, loop_axis, panels
from blindspot.publish.item import Item


def lines_by_loop(collected: Collected, item: Item) -> Panels:
    """One column a size, one row a value, one line a cell over the loops."""
    values = list(item.values)
    mean = over_seeds(collected.frame(item.reads[0]), ["size", "cell", "k"], values)
    figure = panels(collected, collected.sizes, [1.8] * len(values))
    for column, size in enumerate(collected.sizes):
        part = mean[mean["size"] == size]
        for row, (value, label) in enumerate(item.values.items()):
            ax = figure.axes[row, column]
            low, high = mean[f"{value}_min"].min(), mean[f"{value}_max"].max()
            room = 0.08 * (high - low) or 0.1
            ax.set_ylim(low - room, high + room)
            lines(ax, part, "k", value, figure.style, "interval", DODGE)
            loop_axis(ax, sorted(part["k"].unique()), collected.deepest)
            last = row == len(values) - 1
            ax.set(xlabel="after loop k" if last else "", ylabel="" if column else label)
    figure.legend(mean["cell"])
    return figure
