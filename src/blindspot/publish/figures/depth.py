"""Figures of what depth buys: perplexity by exit, and the frontier against throughput."""

from functools import partial
from math import exp
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import NullFormatter, NullLocator

from blindspot.collect.collected import Collected
from blindspot.collect.stats import over_seeds
from blindspot.publish.figures.panels import (
    DODGE,
    NOTE,
    Panels,
    key,
    lines,
    log_axis,
    log_limits,
    loop_axis,
    nothing,
    off_scale,
    panels,
    unigram,
)
from blindspot.publish.speeds import speeds

#: Perplexities this far above the best are dead exits: a linear panel leaves them off its scale.
FAR = 3.0


def exits(collected: Collected, split: str = "validation", protocol: str = "full") -> pd.DataFrame:
    """Perplexity by size, cell and depth: geometric mean over seeds (exp of the mean CE) with its
    interval."""
    e = collected.frame("exits")
    e = e[(e["split"] == split) & (e["protocol"] == protocol)]
    return over_seeds(e, ["size", "cell", "k"], ["ppl"], log=["ppl"])


def live_limits(collected: Collected, part: pd.DataFrame) -> tuple[float, float]:
    """Linear limits around the exits that were trained and are not far above the best one; a
    unigram model that is better than all of them is in, too."""
    dead = part["cell"].map(collected.terminal) & (part["k"] != collected.own(part))
    trained = part[~dead]
    finite = trained[np.isfinite(trained["ppl"])]
    if finite.empty:
        return 1.0, 2.0
    near = finite[finite["ppl"] <= FAR * finite["ppl"].min()]
    # A wide interval of few seeds must not squeeze the curves: it may leave the panel.
    room = near["ppl"].max() - near["ppl"].min()
    reach = max(room, 0.02 * near["ppl"].min()) / 2
    bottom = near["ppl_low"].fillna(near["ppl"]).clip(lower=near["ppl"] - reach)
    top = near["ppl_high"].fillna(near["ppl"]).clip(upper=near["ppl"] + reach)
    low, high = float(bottom.min()), float(top.max())
    low = np.fmin(low, exp(collected.baseline("unigram")))  # NaN where it is not known
    margin = 0.08 * (high - low) or 0.05 * high
    return low - margin, high + 1.6 * margin


def perplexity_by_depth(collected: Collected) -> Panels:
    """PPL at k = 1.., logarithmic over all cells, and close up on the live exits."""
    mean = exits(collected)
    figure = panels(collected, collected.sizes, [1.75, 2.1])
    known = pd.Series([exp(collected.baseline("unigram"))])
    limits = log_limits(pd.concat([mean["ppl"], known]))
    for column, size in enumerate(collected.sizes):
        part = mean[mean["size"] == size]
        whole, close = figure.axes[:, column]
        whole.set_yscale("log")
        whole.set_ylim(limits)
        close.set_ylim(live_limits(collected, part))
        for ax in (whole, close):
            held = ax.get_ylim()
            inside = part["k"] <= collected.own(part)
            draw = partial(lines, ax, x="k", y="ppl", style=figure.style, dodge=DODGE)
            draw(part[inside], spread="interval")
            # Beyond a cell's own K: small, and where others go on not to be taken for one of them.
            beyond: Any = {"linestyle": ":", "linewidth": 0.9, "markersize": 2.4}
            draw(part[~inside], spread="interval", **beyond)
            ax.set_ylim(held)
            loop_axis(ax, sorted(part["k"].unique()), collected.deepest, named=ax is whole)
            lift = 8 if ax is whole and not inside.all() else 0
            off_scale(ax, part, "k", "ppl", figure.style, lift)
            ax.set(xlabel="", ylabel="")
        log_axis(whole)
        close.set_xlabel("exit after loop k")
    for ax in figure.axes[:, 0]:
        ax.set_ylabel("perplexity")
    figure.legend(mean["cell"], unigram(figure.axes.flat, exp(collected.baseline("unigram"))))
    return figure


def frontier(collected: Collected) -> Panels:
    """Measured PPL against measured tokens/s of the same cell and depth."""
    speed = speeds(collected)
    speed = speed[["size", "cell", "k", *(f"tokens_per_s{q}" for q in ("", "_q25", "_q75"))]]
    points = exits(collected).merge(speed, on=["size", "cell", "k"])
    sizes = [size for size in collected.sizes if size in set(points["size"])]
    if not sizes:
        return nothing(collected, "throughput is not measured")
    figure = panels(collected, sizes, [2.6])
    for ax, size in zip(figure.axes[0], sizes, strict=True):
        part = points[points["size"] == size]
        ax.set_xscale("log")
        reach = pd.concat([part["tokens_per_s_q25"], part["tokens_per_s_q75"]])
        ax.set_xlim(log_limits(reach, room=0.05))
        ax.set_ylim(live_limits(collected, part))
        held = ax.get_ylim()
        _dominated(ax, part)
        for _, p in part[np.isfinite(part["ppl"])].iterrows():
            reach = [p["tokens_per_s_q25"], p["tokens_per_s_q75"]]
            color = figure.style[p["cell"]].color
            ax.plot(reach, [p["ppl"]] * 2, color=color, linewidth=0.8, zorder=1.5,
                    label=f"{p['cell']}: quartiles of the timings")  # fmt: skip
        lines(ax, part, "tokens_per_s", "ppl", figure.style)
        ax.set_ylim(held)
        off_scale(ax, part, "tokens_per_s", "ppl", figure.style, lift=11)
        log_axis(ax, "x")
        ax.set(xlabel="tokens/s", ylabel="")
        _depth_labels(ax, part)
    figure.axes[0, 0].set_ylabel("perplexity")
    shade = key("dominated", color="#E2E2E2", linewidth=6)
    known = unigram(figure.axes.flat, exp(collected.baseline("unigram")))
    figure.legend(points["cell"], [shade, *known])
    return figure


def pareto(points: pd.DataFrame) -> pd.DataFrame:
    """The points that no other beats in both speed and perplexity, from slow to fast.

    Columns `tokens_per_s` (more is better) and `ppl` (less is better).
    """
    order = points[np.isfinite(points["ppl"])].sort_values(
        ["tokens_per_s", "ppl"], ascending=[False, True]
    )
    best = order["ppl"].cummin()
    keep = order["ppl"] < best.shift(fill_value=np.inf)
    return order[keep].iloc[::-1]


def _dominated(ax: Axes, points: pd.DataFrame) -> None:
    """Shade every place that is slower and no better than a measured point."""
    front = pareto(points)
    if front.empty:
        return
    left = ax.get_xlim()[0]
    x = np.concatenate([[left], front["tokens_per_s"]])
    top = ax.get_ylim()[1]
    # Between two points of the front the next faster one still dominates what is above it.
    ax.fill_between(x, np.append(front["ppl"], front["ppl"].iloc[-1]), top, step="post",
                    color="#EFEFEF", linewidth=0, zorder=0)  # fmt: skip


def _depth_labels(ax: Axes, points: pd.DataFrame) -> None:
    """Name the depths along the top, at the median speed of the cells, where they do not touch."""
    top = ax.secondary_xaxis("top")
    at = points.groupby("k")["tokens_per_s"].median()
    span = np.log(ax.get_xlim()[1] / ax.get_xlim()[0])
    kept: list[tuple[int, float]] = []
    for k, speed in at.items():
        if all(abs(np.log(speed / other)) > 0.07 * span for _, other in kept):
            kept.append((int(str(k)), float(speed)))
    top.xaxis.set_minor_locator(NullLocator())
    top.xaxis.set_minor_formatter(NullFormatter())
    top.set_xticks([speed for _, speed in kept], [f"k={k}" for k, _ in kept])
    top.tick_params(length=2, pad=1, labelsize=6.5, labelcolor=NOTE)
    top.spines["top"].set_visible(False)
