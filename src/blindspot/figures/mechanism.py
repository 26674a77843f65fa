"""Figures of the mechanism: what gradients see of the scale, and how updates depend on it."""

from functools import partial

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

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
    symlog_axis,
)
from blindspot.stats import over_seeds

KEYS = ["size", "cell", "k"]
#: A readout whose |cos| is below this in float64 is blind; in float32 it shows rounding alone.
BLIND = 1e-6
#: Angular steps this far below the largest (of a cell that came to rest) leave the panel.
DEEPEST = 1e-5


def radial_fraction(collected: Collected) -> Panels:
    """|cos| of gradient and state by loop: immediate on top, through the recurrence below."""
    g = collected.frame("gradients")
    g = g[g["source"] == "ce"]
    figure = panels(collected, collected.sizes, [2.0, 1.7])
    exact = g[g["dtype"] == "float64"]
    for row, path in enumerate(("immediate", "recurrence")):
        mean = over_seeds(exact[exact["path"] == path], [*KEYS, "trained"], ["cos_abs_mean"])
        for ax, size in zip(figure.axes[row], collected.sizes, strict=True):
            own = g[(g["size"] == size) & (g["path"] == path)]
            part = mean[mean["size"] == size]
            chance = own["chance_cos_abs"].iloc[0] if len(own) else np.nan
            values = pd.concat([mean["cos_abs_mean"], pd.Series([chance])])
            # On a short range intervals are as long as the axis; give them room.
            short = values.max() < 10 * values.min()
            limits = log_limits(values, room=0.3 if short else 0.06)
            ax.set_yscale("log")
            ax.set_ylim(limits)
            ax.axhline(chance, color=NOTE, linewidth=0.9, linestyle=(0, (1, 1.5)), zorder=1)
            if row == 0:
                _floor(ax, own)
            # Exits that were not trained are the readout's property, not the training's.
            draw = partial(lines, ax, x="k", y="cos_abs_mean", style=figure.style, dodge=DODGE)
            draw(part[part["trained"] == 0], spread=None, linestyle=":", linewidth=0.9)
            draw(part[part["trained"] == 1], spread="interval")
            ax.set_ylim(limits)
            loop_axis(ax, list(range(1, collected.loops + 1)), collected.loops)
            off_scale(ax, part, "k", "cos_abs_mean", figure.style)
            log_axis(ax)
            ax.set(xlabel="loop k" if row else "", ylabel="")
        figure.axes[row, 0].set_ylabel("|cos|, immediate" if row == 0 else "|cos|, recurrence")
    extra = [
        Line2D([], [], color=NOTE, linewidth=0.9, linestyle=(0, (1, 1.5)), label="chance"),
        Line2D([], [], color=NOTE, linewidth=0.9, linestyle=(0, (6, 2)), label="float32 floor"),
    ]
    figure.legend(exact["cell"], extra)
    return figure


def _floor(ax: Axes, own: pd.DataFrame) -> None:
    """What float32 shows of a readout that float64 shows to be blind."""
    by = own.set_index(["cell", "seed", "k", "dtype"])["cos_abs_mean"].unstack()
    blind = by[by["float64"] < BLIND] if "float64" in by else by
    if len(blind):
        floor = blind["float32"].mean()
        ax.axhline(floor, color=NOTE, linewidth=0.9, linestyle=(0, (6, 2)), zorder=1)


def update_lemma(collected: Collected) -> Panels:
    """One row a size: the check at fixed u; angular step x s and radial increment along k."""
    sizes = collected.sizes
    figure = panels(
        collected,
        ["fixed u: distance to the limit", "angular step × s", "radial increment"],
        [1.9] * len(sizes),
    )
    fixed, along = collected.frame("update_fixed"), collected.frame("updates")
    columns = ["radial_rest_mean", "angular_rest_mean"]
    rest = over_seeds(fixed[fixed["k"] == collected.loops], ["size", "cell", "norm"], columns)
    mean = over_seeds(along, KEYS, ["angular_step_norm_mean", "radial_mean"])
    for row, size in enumerate(sizes):
        check, angular, radial = figure.axes[row]
        _instrument(figure, check, rest[rest["size"] == size])
        part = mean[mean["size"] == size]
        for ax, value in ((angular, "angular_step_norm_mean"), (radial, "radial_mean")):
            if value == "radial_mean":
                symlog_axis(ax, part[value], linear=1.0)
            else:
                ax.set_yscale("log")
                low, high = log_limits(part[value])
                ax.set_ylim(max(low, high * DEEPEST), high)
            held = ax.get_ylim()
            lines(ax, part, "k", value, figure.style, "range", markersize=3)
            ax.set_ylim(held)
            last = part["k"].max()
            ax.set_xlim(-0.5, last + 0.5)
            ax.axvspan(collected.loops - 0.5, last + 0.5, color="#F3F3F3", linewidth=0, zorder=0)
            if value != "radial_mean":
                off_scale(ax, part, "k", value, figure.style, lift=0 if row else 11)
                log_axis(ax)
            ax.set(xlabel="from loop k to k + 1" if row == len(sizes) - 1 else "", ylabel="")
        check.set(xlabel="norm s" if row == len(sizes) - 1 else "", ylabel=size)
    figure.legend(mean["cell"])
    return figure


def _instrument(figure: Panels, ax: Axes, rest: pd.DataFrame) -> None:
    """Distances to the limits a(u) and |b_perp(u)| over s, beside a line that falls as 1/s."""
    ax.set_xscale("log")
    ax.set_yscale("log")
    both = pd.concat([rest["radial_rest_mean"], rest["angular_rest_mean"]])
    # Far out the differences end in rounding, some powers of ten below what the lemma speaks of.
    seen = both[both > 1e-9]
    limits = log_limits(seen)
    ax.set_xlim(log_limits(rest["norm"]))
    ax.set_ylim(limits)
    s = np.array(ax.get_xlim())
    top = both[both > 0].max() * rest["norm"].min() if len(both[both > 0]) else 1.0
    ax.plot(s, 2 * top / s, color=NOTE, linewidth=0.8, linestyle=(0, (1, 1.5)), zorder=1)
    lines(ax, rest, "norm", "angular_rest_mean", figure.style, None, markersize=3)
    lines(ax, rest, "norm", "radial_rest_mean", figure.style, None, markersize=3, linewidth=0.6)
    ax.set_ylim(limits)
    log_axis(ax, "x")
    log_axis(ax)
