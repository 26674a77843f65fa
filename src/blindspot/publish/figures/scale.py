"""Figures of the state's norm: over training, and by loop."""

from functools import partial

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.transforms import ScaledTranslation

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
    off_scale,
    panels,
    step_axis,
)

#: Norms whose first passing is shown, each with a marker of its own.
PASSED = {100.0: "o", 1000.0: "s", 10_000.0: "D"}
#: The parts of a norm's growth.
PARTS = {"first": "loop 1", "rest": "loops 2 to K"}


def norm_over_training(collected: Collected) -> Panels:
    """|H_K| by optimizer step; below, the step at which it first passes 100, 1,000 and 10,000."""
    t = collected.frame("trajectory")
    t = collected.last(t[t["split"] == "train"])
    mean = over_seeds(t, ["size", "cell", "step"], ["norm_mean"], log=["norm_mean"])
    cells = [cell for cell in collected.cells if cell in set(mean["cell"])]
    passing = first_passing(t)
    told = resolved(t)
    rows = [0.35 + 0.15 * len(cells)] if told else []
    figure = panels(collected, collected.sizes, [2.0, *rows])
    limits = log_limits(mean["norm_mean"])
    for column, size in enumerate(collected.sizes):
        part = mean[mean["size"] == size]
        ax = figure.axes[0, column]
        ax.set_yscale("log")
        ax.set_ylim(limits)
        lines(ax, part, "step", "norm_mean", figure.style)
        ax.set_ylim(limits)
        step_axis(ax, part["step"])
        off_scale(ax, part, "step", "norm_mean", figure.style)
        log_axis(ax)
        if not told:
            ax.set_ylabel("")
            continue
        ax.set(xlabel="", ylabel="")
        below = figure.axes[1, column]
        own = passing[passing["size"] == size].set_index("cell")
        for row, cell in enumerate(cells):
            look = figure.style[cell]
            if cell not in own.index:
                if cell in set(part["cell"]):
                    below.text(0.01 * part["step"].max(), row, "stays below 100", va="center",
                               fontsize=6, color=NOTE)  # fmt: skip
                continue
            for i, (_, at) in enumerate(own.loc[[cell]].iterrows()):
                # Open where not every seed passes; side by side where two are passed at one step.
                face = look.color if at["seeds"] == at["runs"] else "white"
                same = (own.loc[[cell], "step"].iloc[:i] == at["step"]).sum()
                aside = ScaledTranslation(5.5 / 72 * same, 0, figure.figure.dpi_scale_trans)
                below.plot(at["step"], row, PASSED[at["norm"]], color=look.color,
                           markerfacecolor=face, markersize=4.4, clip_on=False,
                           label=f"{cell}: passes {at['norm']:,.0f}",
                           transform=below.transData + aside)  # fmt: skip
        step_axis(below, part["step"])
        _named_rows(below, cells, column == 0, collected.cells_at(size))
    figure.axes[0, 0].set_ylabel(f"norm of $H_{{{collected.depth}}}$")
    marks = [
        key(f"passes {norm:,.0f}", marker=marker, linestyle="none")
        for norm, marker in PASSED.items()
    ]
    figure.legend(cells, marks if told else [])
    return figure


def resolved(train: pd.DataFrame) -> bool:
    """Whether the log tells a quarter of the first passings: not those that its first entry after
    step 1 already shows, which say how often was logged and no more."""
    known = []
    for _, part in train.groupby("run"):
        early = part.loc[part["step"] > 1, "step"].min()
        for norm in PASSED:
            steps = part.loc[part["norm_mean"] >= norm, "step"]
            if len(steps):
                known.append(steps.min() > early)
    return not known or bool(np.mean(known) >= 0.25)


def first_passing(train: pd.DataFrame) -> pd.DataFrame:
    """By size, cell and norm of `PASSED`: mean over seeds of the first logged step at which
    `norm_mean` is at least that; `seeds` that get there, of so many `runs`."""
    rows = []
    for (size, cell), part in train.groupby(["size", "cell"], sort=False):
        for norm in PASSED:
            steps = part[part["norm_mean"] >= norm].groupby("seed")["step"].min()
            if len(steps):
                counts = {"seeds": len(steps), "runs": part["seed"].nunique()}
                rows.append({"size": size, "cell": cell, "norm": norm, "step": steps.mean()})
                rows[-1] |= counts
    return pd.DataFrame(rows, columns=["size", "cell", "norm", "step", "seeds", "runs"])


def _named_rows(ax: Axes, cells: list[str], named: bool, planned: list[str]) -> None:
    """A y-axis with one row a cell, in the order of the config from the top. A row of a cell that
    is not planned at this size says so."""
    for row, cell in enumerate(cells):
        if cell not in planned:
            ax.text(0.01, row, "not at this size", va="center", fontsize=6, color=NOTE,
                    transform=ax.get_yaxis_transform())  # fmt: skip
    ax.set_yticks(range(len(cells)), cells if named else [""] * len(cells))
    ax.tick_params(axis="y", length=0)
    ax.set_ylim(len(cells) - 0.4, -0.6)


def norm_by_loop(collected: Collected) -> Panels:
    """Norm of H_0..H_K; below, the factors of loop 1 and of loops 2..K."""
    n = collected.frame("norms")
    n = n[n["split"] == "validation"]
    mean = over_seeds(n, ["size", "cell", "k"], ["l2_mean"], log=["l2_mean"])
    cells = [cell for cell in collected.cells if cell in set(mean["cell"])]
    figure = panels(collected, collected.sizes, [2.1, 0.35 + 0.14 * len(cells)])
    limits = log_limits(mean["l2_mean"])
    for column, size in enumerate(collected.sizes):
        part = mean[mean["size"] == size]
        ax = figure.axes[0, column]
        ax.set_yscale("log")
        ax.set_ylim(limits)
        # Loop 1 takes the embedding to the scale of the stack; it is drawn apart, thin and dotted.
        k, loops = part["k"], collected.own(part)
        draw = partial(lines, ax, x="k", y="l2_mean", style=figure.style, dodge=DODGE)
        draw(part[k <= 1], spread=None, linestyle=":", linewidth=0.9)
        draw(part[k > loops], spread="interval", linestyle=":", linewidth=0.9)
        draw(part[(k >= 1) & (k <= loops)], spread="interval")
        ax.set_ylim(limits)
        loop_axis(ax, sorted(part["k"].unique()), collected.deepest)
        off_scale(ax, part, "k", "l2_mean", figure.style, lift=8 if (k > loops).any() else 0)
        log_axis(ax)
        ax.set(xlabel="after loop k", ylabel="")
        _factors(figure, figure.axes[1, column], n[n["size"] == size], cells)
        _named_rows(figure.axes[1, column], cells, column == 0, collected.cells_at(size))
    figure.axes[0, 0].set_ylabel("norm of the state")
    figure.legend(cells)
    return figure


def _factors(figure: Panels, ax: Axes, norms: pd.DataFrame, cells: list[str]) -> None:
    """Dots: |H_1| / |H_0| and |H_K| / |H_1| of one size, one line a cell; 1 means no growth."""
    by_k = norms.pivot(index=["cell", "seed"], columns="k", values="l2_mean")
    last = figure.collected.last(norms).set_index(["cell", "seed"])["l2_mean"]
    growth = pd.DataFrame({"first": by_k[1] / by_k[0], "rest": last / by_k[1]}).reset_index()
    parts = list(PARTS)
    mean = over_seeds(growth, ["cell"], parts, log=parts).set_index("cell")
    ax.set_xscale("log")
    ax.axvline(1, color=NOTE, linewidth=0.8, zorder=1)
    for row, cell in enumerate(cells):
        if cell not in mean.index:
            continue
        look = figure.style[cell]
        at = mean.loc[cell]
        ax.plot([at["first"], at["rest"]], [row, row], color="#CCCCCC", linewidth=0.8, zorder=1)
        for part, face in (("first", "white"), ("rest", look.color)):
            ax.plot(at[part], row, "o", color=look.color, markerfacecolor=face, markersize=4.6,
                    label=f"{cell}: {PARTS[part]}")  # fmt: skip
    ax.set_xlim(log_limits(pd.concat([mean["first"], mean["rest"], pd.Series([0.9, 1.1])])))
    log_axis(ax, "x")
    last_loop = figure.collected.depth
    ax.set_xlabel(
        f"factor on the norm: \N{WHITE CIRCLE} loop 1, \N{BLACK CIRCLE} loops 2 to {last_loop}"
    )
