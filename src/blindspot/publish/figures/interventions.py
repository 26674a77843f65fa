"""Figures of interventions: clamped scale, and halting."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from blindspot.collect.collected import Collected
from blindspot.collect.stats import EQUIVALENT, over_seeds
from blindspot.publish.figures.panels import (
    DODGE,
    DOTS,
    NOTE,
    Panels,
    key,
    lines,
    loop_axis,
    off_scale,
    panels,
    symlog_axis,
)
from blindspot.publish.style import CellStyle

#: Relative perplexity up to which halting is drawn: dead exits lie far above.
TOP = 1.12


def clamp(collected: Collected) -> Panels:
    """Change of CE by depth: norms clamped on top, radial parts removed below."""
    c = collected.frame("clamp")
    mean = over_seeds(c, ["size", "cell", "intervention", "k"], ["change_mean"])
    figure = panels(collected, collected.sizes, [1.8, 1.8])
    names = {"norm": "norm clamped", "radial": "radial part removed"}
    for row, (name, label) in enumerate(names.items()):
        every = mean[mean["intervention"] == name]
        for ax, size in zip(figure.axes[row], collected.sizes, strict=True):
            part = every[every["size"] == size]
            symlog_axis(ax, every["change_mean"], linear=EQUIVALENT)
            held = ax.get_ylim()
            ax.axhspan(-EQUIVALENT, EQUIVALENT, color="#F0F0F0", linewidth=0, zorder=0)
            ax.axhline(0, color=NOTE, linewidth=0.8, zorder=1)
            lines(ax, part, "k", "change_mean", figure.style, "interval", DODGE)
            ax.set_ylim(held)
            loop_axis(ax, list(range(1, collected.deepest + 1)), collected.deepest)
            ax.set(xlabel="exit after loop k" if row else "", ylabel="")
        figure.axes[row, 0].set_ylabel(f"change of CE,\n{label}")
    shade = key(f"± {EQUIVALENT:g} nats", color="#E2E2E2", linewidth=6)
    figure.legend(mean["cell"], [shade])
    return figure


def on_grid(curve: pd.DataFrame, loops_of: Mapping[str, int]) -> pd.DataFrame:
    """Relative perplexity of each run over one grid of mean loops up to its cell's K, linearly
    between thresholds.

    Seeds have thresholds of their own, so that a mean over seeds needs a common axis.
    """
    parts = []
    for (size, cell, seed), rows in curve.groupby(["size", "cell", "seed"], sort=False):
        # Of thresholds with equal loops the best is what one would take.
        best = rows.groupby("mean_loops")["relative_ppl"].min()
        loops = loops_of[str(cell)]
        grid = np.round(np.linspace(1, loops, 10 * (loops - 1) + 1), 6)
        values = np.interp(grid, best.index, best.to_numpy())
        lead = {"size": size, "cell": cell, "seed": seed}
        parts.append(pd.DataFrame({"loops": grid, "relative_ppl": values}).assign(**lead))
    columns = ["loops", "relative_ppl", "size", "cell", "seed"]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=columns)


def calibrated_mark(variant: str, look: CellStyle) -> dict[str, Any]:
    """The cell's marker, large: with a black edge for the oracle, half filled for the realised."""
    mark: dict[str, Any] = {"marker": look.marker, "markersize": 6.5, "linestyle": "none"}
    if variant == "realised":
        half = {"fillstyle": "left", "markerfacecolor": look.color, "markerfacecoloralt": "white"}
        return mark | half | {"markeredgecolor": look.color}
    face = look.color if look.filled else "white"
    return mark | {"markerfacecolor": face, "markeredgecolor": "black", "markeredgewidth": 1.3}


def halting(collected: Collected) -> Panels:
    """Relative perplexity over mean loops: the oracle's curve, and the calibrated points."""
    curve, points = collected.frame("halting_curve"), collected.frame("halting")
    figure = panels(collected, collected.sizes, [1.9, 1.9])
    mean_points = over_seeds(
        points,
        ["size", "cell", "score", "variant"],
        ["mean_loops", "relative_ppl"],
        log=["relative_ppl"],
    )
    for row, score in enumerate(("margin", "entropy")):
        every = on_grid(curve[curve["score"] == score], collected.loops_of)
        mean = over_seeds(every, ["size", "cell", "loops"], ["relative_ppl"])
        own = mean_points[mean_points["score"] == score]
        low = float(min(mean["relative_ppl"].min(), own["relative_ppl"].min(), 1.0))
        for ax, size in zip(figure.axes[row], collected.sizes, strict=True):
            part = mean[mean["size"] == size]
            ax.set_ylim(low - 0.01, TOP)
            ax.set_xlim(0.9, collected.deepest + 0.1)
            held = ax.get_ylim()
            target = collected.study["measurement"]["halting_target"]
            ax.axhline(target, color=NOTE, linewidth=0.9, linestyle=DOTS, zorder=1)
            lines(ax, part, "loops", "relative_ppl", figure.style, "range", markersize=3)
            for variant in ("oracle", "realised"):
                here = own[(own["size"] == size) & (own["variant"] == variant)]
                for _, p in here[np.isfinite(here["relative_ppl"])].iterrows():
                    mark = calibrated_mark(variant, figure.style[p["cell"]])
                    ax.plot(p["mean_loops"], p["relative_ppl"], **mark, zorder=4,
                            label=f"{p['cell']}: calibrated, {variant}")  # fmt: skip
            ax.set_ylim(held)
            calibrated = own[own["size"] == size]
            off_scale(ax, calibrated, "mean_loops", "relative_ppl", figure.style)
            ax.set_xticks(range(1, collected.deepest + 1))
            ax.set(xlabel="mean loops" if row else "", ylabel="")
        figure.axes[row, 0].set_ylabel(f"relative perplexity,\n{score}")
    grey = CellStyle(NOTE, "o", "-", True)
    extra = [
        key(f"calibrated, {variant}", **calibrated_mark(variant, grey))
        for variant in ("oracle", "realised")
    ]
    extra += [key("target", linestyle=DOTS)]
    figure.legend(mean_points["cell"], extra)
    return figure
