"""Figure of the norm over tokens: survival curves."""

import pandas as pd

from blindspot.collected import Collected
from blindspot.figures.panels import Panels, lines, log_axis, log_limits, panels


def survival(hist: pd.DataFrame) -> pd.DataFrame:
    """Share of tokens whose norm is at least `norm`, by size and cell, exact at the bins' edges.

    `hist` are rows of norm_hist.csv of one k. Every run has the same bins, so the counts of seeds
    add up.
    """
    keys = ["size", "cell"]
    counts = hist.groupby([*keys, "low"], sort=False)["count"].sum().reset_index()
    counts = counts.sort_values("low", kind="stable")
    groups = counts.groupby(keys, sort=False)["count"]
    above = groups.transform(lambda x: x[::-1].cumsum()[::-1])
    return counts.assign(norm=counts["low"], share=above / groups.transform("sum"))


def token_norm_survival(collected: Collected) -> Panels:
    """Survival of |H_K| over tokens, both axes logarithmic."""
    h = collected.frame("norm_hist")
    h = h[(h["split"] == "validation") & (h["k"] == collected.loops) & (h["low"] > 0)]
    curve = survival(h).assign(seeds=1, share_ci=float("nan"))
    figure = panels(collected, collected.sizes, [2.3])
    for ax, size in zip(figure.axes[0], collected.sizes, strict=True):
        part = curve[curve["size"] == size]
        ax.set_xscale("log")
        ax.set_yscale("log")
        ax.set_xlim(log_limits(curve["norm"], room=0.03))
        ax.set_ylim(log_limits(pd.concat([curve["share"], pd.Series([1.0])]), room=0.04))
        lines(ax, part, "norm", "share", figure.style, None)
        log_axis(ax, "x")
        log_axis(ax)
        ax.set(xlabel=f"norm of $H_{{{collected.loops}}}$", ylabel="")
    figure.axes[0, 0].set_ylabel("share of tokens at least so large")
    figure.legend(curve["cell"])
    return figure
