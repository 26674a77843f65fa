"""Figure of the norm over tokens: survival curves."""

import numpy as np
import pandas as pd

from blindspot.collect.collected import Collected
from blindspot.publish.figures.panels import Panels, log_axis, log_limits, panels

#: Shares of tokens at which a curve carries a marker: the first point at or below each.
MARKED = (0.5, 0.1, 0.01, 1e-3, 1e-4)
#: Columns of norms.csv, and the share of tokens at least so large.
QUANTILES = {"l2_p50": 0.5, "l2_p90": 0.1, "l2_p99": 0.01, "l2_p999": 1e-3}
RUN = ["size", "cell", "seed"]


def survival(hist: pd.DataFrame, norms: pd.DataFrame) -> pd.DataFrame:
    """Share of a run's tokens whose norm is at least `norm`, by size, cell and seed, exact at the
    bins' edges and at the quantiles.

    `hist` are rows of norm_hist.csv and `norms` of norms.csv, of one split and k. Where all tokens
    have nearly one norm, they fall in one or two bins; the quantiles say where in them.
    """
    counts = hist.sort_values([*RUN, "low"], kind="stable")
    groups = counts.groupby(RUN, sort=False)["count"]
    above = groups.transform(lambda x: x[::-1].cumsum()[::-1])
    total = groups.transform("sum")
    bins = counts.assign(norm=counts["low"], share=above / total)
    bins["below"] = (above - counts["count"]) / total
    points = [norms.assign(norm=norms[name], share=share) for name, share in QUANTILES.items()]
    largest = norms.merge((1 / counts.groupby(RUN)["count"].sum()).rename("share"), on=RUN)
    points.append(largest.assign(norm=largest["l2_max"]))
    columns = [*RUN, "norm", "share"]
    inside = pd.concat(points)[columns].merge(
        bins[[*RUN, "low", "high", "share", "below"]], on=RUN, suffixes=("", "_low")
    )
    # Interpolated quantiles of few tokens may not agree with the counts: these have the last word.
    fits = inside["norm"].between(inside["low"], inside["high"])
    fits &= inside["share"].between(inside["below"], inside["share_low"])
    found = pd.concat([bins[columns], inside.loc[fits, columns]]).drop_duplicates()
    order = [*RUN, "norm", "share"]
    return found.sort_values(order, ascending=[True] * 4 + [False], ignore_index=True)


def token_norm_survival(collected: Collected) -> Panels:
    """Survival of |H_K| over tokens, both axes logarithmic, one curve a run."""
    h, n = (
        collected.last(f[f["split"] == "validation"])
        for f in (collected.frame("norm_hist"), collected.frame("norms"))
    )
    curve = survival(h[h["low"] > 0], n)
    figure = panels(collected, collected.sizes, [2.5])
    floor = curve.loc[curve["share"] > 0, "share"].min()
    for ax, size in zip(figure.axes[0], collected.sizes, strict=True):
        ax.set_xscale("log")
        ax.set_yscale("log")
        ax.set_xlim(log_limits(curve["norm"], room=0.03))
        ax.set_ylim(log_limits(pd.Series([floor, 1.0]), room=0.04))
        part = curve[curve["size"] == size]
        for cell in figure.style:
            for seed, run in part[part["cell"] == cell].groupby("seed"):
                share = run["share"].to_numpy()
                at = [int(np.argmax(share <= s)) for s in MARKED if share.min() <= s]
                look = figure.style[cell].line() | {"markersize": 3.4, "linewidth": 0.9}
                ax.plot(run["norm"], share, **look, markevery=at, label=f"{cell}, seed {seed}")
        log_axis(ax, "x")
        log_axis(ax)
        ax.set(xlabel=f"norm of $H_{{{collected.depth}}}$", ylabel="")
    figure.axes[0, 0].set_ylabel("share of tokens at least so large")
    figure.legend(curve["cell"])
    return figure
