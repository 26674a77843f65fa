"""Figures of the state's norm: over training, and by loop."""

from functools import partial

import pandas as pd
from matplotlib.axes import Axes

from blindspot.collected import Collected
from blindspot.figures.panels import (
    DODGE,
    NOTE,
    Panels,
    lines,
    log_axis,
    log_limits,
    loop_axis,
    off_scale,
    panels,
    step_axis,
)
from blindspot.stats import over_seeds


def norm_over_training(collected: Collected) -> Panels:
    """|H_K| by optimizer step."""
    t = collected.frame("trajectory")
    t = t[(t["split"] == "train") & (t["k"] == collected.loops)]
    mean = over_seeds(t, ["size", "cell", "step"], ["norm_mean"])
    figure = panels(collected, collected.sizes, [2.2])
    limits = log_limits(mean["norm_mean"])
    for ax, size in zip(figure.axes[0], collected.sizes, strict=True):
        part = mean[mean["size"] == size]
        ax.set_yscale("log")
        ax.set_ylim(limits)
        lines(ax, part, "step", "norm_mean", figure.style)
        ax.set_ylim(limits)
        step_axis(ax, part["step"])
        off_scale(ax, part, "step", "norm_mean", figure.style)
        log_axis(ax)
        ax.set_ylabel("")
    figure.axes[0, 0].set_ylabel(f"norm of $H_{{{collected.loops}}}$")
    figure.legend(mean["cell"])
    return figure


def norm_by_loop(collected: Collected) -> Panels:
    """Norm of H_0..H_K; below, the factors of loop 1 and of loops 2..K."""
    n = collected.frame("norms")
    n = n[n["split"] == "validation"]
    mean = over_seeds(n, ["size", "cell", "k"], ["l2_mean"])
    cells = [cell for cell in collected.cells if cell in set(mean["cell"])]
    figure = panels(collected, collected.sizes, [2.1, 0.35 + 0.14 * len(cells)])
    limits = log_limits(mean["l2_mean"])
    loops = collected.loops
    for column, size in enumerate(collected.sizes):
        part = mean[mean["size"] == size]
        ax = figure.axes[0, column]
        ax.set_yscale("log")
        ax.set_ylim(limits)
        # Loop 1 takes the embedding to the scale of the stack; it is drawn apart, thin and dotted.
        k = part["k"]
        draw = partial(lines, ax, x="k", y="l2_mean", style=figure.style, dodge=DODGE)
        draw(part[k <= 1], spread=None, linestyle=":", linewidth=0.9)
        draw(part[k > loops], spread="interval", linestyle=":", linewidth=0.9)
        draw(part[(k >= 1) & (k <= loops)], spread="interval")
        ax.set_ylim(limits)
        loop_axis(ax, sorted(part["k"].unique()), loops)
        off_scale(ax, part, "k", "l2_mean", figure.style, lift=8 if (k > loops).any() else 0)
        log_axis(ax)
        ax.set(xlabel="after loop k", ylabel="")
        _factors(figure, figure.axes[1, column], n[n["size"] == size], cells, column == 0)
    figure.axes[0, 0].set_ylabel("norm of the state")
    figure.legend(cells)
    return figure


def _factors(figure: Panels, ax: Axes, norms: pd.DataFrame, cells: list[str], named: bool) -> None:
    """Dots: |H_1| / |H_0| and |H_K| / |H_1| of one size, one line a cell; 1 means no growth."""
    loops = figure.collected.loops
    by_k = norms.pivot(index=["cell", "seed"], columns="k", values="l2_mean")
    growth = pd.DataFrame({"first": by_k[1] / by_k[0], "rest": by_k[loops] / by_k[1]}).reset_index()
    mean = over_seeds(growth, ["cell"], ["first", "rest"]).set_index("cell")
    ax.set_xscale("log")
    ax.axvline(1, color=NOTE, linewidth=0.8, zorder=1)
    for row, cell in enumerate(cells):
        if cell not in mean.index:
            continue
        look = figure.style[cell]
        at = mean.loc[cell]
        ax.plot([at["first"], at["rest"]], [row, row], color="#CCCCCC", linewidth=0.8, zorder=1)
        for value, face in ((at["first"], "white"), (at["rest"], look.color)):
            ax.plot(value, row, "o", color=look.color, markerfacecolor=face, markersize=4.6)
    ax.set_yticks(range(len(cells)), cells if named else [""] * len(cells))
    ax.tick_params(axis="y", length=0)
    ax.set_ylim(len(cells) - 0.4, -0.6)
    ax.set_xlim(log_limits(pd.concat([mean["first"], mean["rest"], pd.Series([0.9, 1.1])])))
    log_axis(ax, "x")
    ax.set_xlabel(
        f"factor on the norm: \N{WHITE CIRCLE} loop 1, \N{BLACK CIRCLE} loops 2 to {loops}"
    )
