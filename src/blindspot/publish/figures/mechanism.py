"""Figures of the mechanism: what gradients see of the scale, and how updates depend on it."""

from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator

from blindspot.collect.collected import Collected
from blindspot.collect.stats import over_seeds
from blindspot.publish.figures.panels import (
    DODGE,
    DOTS,
    NOTE,
    Panels,
    key,
    lines,
    log_axis,
    log_limits,
    loop_axis,
    off_scale,
    panels,
    symlog_axis,
)

KEYS = ["size", "cell", "k"]
COS = ["cos_abs_mean"]
#: A readout whose |cos| is below this in float64 is blind; in float32 it shows rounding alone.
BLIND = 1e-6
#: Angular steps this far below the largest (of a cell that came to rest) leave the panel.
DEEPEST = 1e-5
#: How a line goes on beyond the trained K.
BEYOND: Any = {"linestyle": ":", "linewidth": 0.9, "marker": ""}
#: Lines that fall as 1/s beneath a whole panel.
GUIDE: Any = {"color": "#BBBBBB", "linewidth": 0.7}


def radial_fraction(collected: Collected) -> Panels:
    """|cos| of gradient and state by loop: immediate on top, through the recurrence below."""
    g = collected.frame("gradients")
    g = g[g["source"] == "ce"]
    figure = panels(collected, collected.sizes, [2.0, 1.7])
    exact = g[g["dtype"] == "float64"]
    for row, path in enumerate(("immediate", "recurrence")):
        mean = over_seeds(exact[exact["path"] == path], [*KEYS, "trained"], COS, log=COS)
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
            ax.axhline(chance, color=NOTE, linewidth=0.9, linestyle=DOTS, zorder=1)
            if row == 0:
                _floor(ax, own)
            # Exits that were not trained are the readout's property, not the training's.
            draw = partial(lines, ax, x="k", y="cos_abs_mean", style=figure.style, dodge=DODGE)
            draw(part[part["trained"] == 0], spread=None, linestyle=":", linewidth=0.9)
            draw(part[part["trained"] == 1], spread="interval")
            ax.set_ylim(limits)
            loop_axis(ax, list(range(1, collected.deepest + 1)), collected.deepest)
            off_scale(ax, part, "k", "cos_abs_mean", figure.style)
            log_axis(ax)
            ax.set(xlabel="loop k" if row else "", ylabel="")
        figure.axes[row, 0].set_ylabel("|cos|, immediate" if row == 0 else "|cos|, recurrence")
    extra = [key("chance", linestyle=DOTS), key("float32 floor", linestyle=(0, (6, 2)))]
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
        ["at fixed directions u", "along the loops", "along the loops"],
        [1.9] * len(sizes),
    )
    fixed, along = collected.frame("update_fixed"), collected.frame("updates")
    columns = ["radial_rest_mean", "angular_rest_mean"]
    rest = over_seeds(collected.last(fixed), ["size", "cell", "norm"], columns, log=columns)
    step = "angular_step_norm_mean"
    mean = over_seeds(along, KEYS, [step, "radial_mean"], log=[step])
    for row, size in enumerate(sizes):
        check, angular, radial = figure.axes[row]
        _instrument(figure, check, rest[rest["size"] == size])
        part = mean[mean["size"] == size]
        for ax, value in ((angular, step), (radial, "radial_mean")):
            if value == "radial_mean":
                symlog_axis(ax, part[value], linear=1.0)
            else:
                ax.set_yscale("log")
                low, high = log_limits(part[value])
                ax.set_ylim(max(low, high * DEEPEST), high)
            held = ax.get_ylim()
            # Beyond a cell's own K its line is thin and dotted.
            own = collected.own(part)
            lines(ax, part[part["k"] < own], "k", value, figure.style, "range", markersize=3)
            beyond = part[part["k"] >= own - 1]
            lines(ax, beyond, "k", value, figure.style, "range", **BEYOND)
            ax.set_ylim(held)
            last = part["k"].max()
            ax.set_xlim(-0.5, last + 0.5)
            ax.axvspan(collected.deepest - 0.5, last + 0.5, color="#F3F3F3", linewidth=0, zorder=0)
            if value != "radial_mean":
                off_scale(ax, part, "k", value, figure.style, lift=0 if row else 11)
                log_axis(ax)
            ax.set(xlabel="from loop k to k + 1" if row == len(sizes) - 1 else "")
        check.set(xlabel="norm s" if row == len(sizes) - 1 else "")
        check.set_ylabel(f"$\\bf{{{size}}}$\ndistance to the limit")
        angular.set_ylabel("angular step × s")
        radial.set_ylabel("radial increment")
    extra = [
        key("left: angular step × s", linewidth=1.3, marker="o"),
        key("left: radial increment", linewidth=0.6),
        key("falls as 1/s", linestyle=DOTS),
        key("beyond the trained K", color="#E2E2E2", linewidth=6),
    ]
    figure.legend(mean["cell"], extra)
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
    ax.plot(s, 2 * top / s, color=NOTE, linewidth=0.8, linestyle=DOTS, zorder=1)
    lines(ax, rest, "norm", "angular_rest_mean", figure.style, None, markersize=3)
    thin: Any = {"named": ": radial increment", "marker": "", "linewidth": 0.6}
    lines(ax, rest, "norm", "radial_rest_mean", figure.style, None, **thin)
    ax.set_ylim(limits)
    log_axis(ax, "x")
    ax.xaxis.set_major_locator(LogLocator(base=100))  # three panels leave little room
    log_axis(ax)


def angle(collected: Collected) -> Panels:
    """Angle from H_k to H_{k+1} and from H_1 to H_k; below, the first over the norm s of H_k."""
    loops = collected.deepest
    values = ["angle_mean", "angle_from_first_mean", "norm_mean"]
    mean = over_seeds(collected.frame("updates"), KEYS, values, log=values)
    trained = mean[mean["k"] < collected.own(mean)]
    figure = panels(collected, collected.sizes, [1.7, 1.5, 2.0])
    for column, size in enumerate(collected.sizes):
        part, every = (f[f["size"] == size] for f in (trained, mean))
        successive, away, over = figure.axes[:, column]
        draw = partial(lines, y="angle_mean", style=figure.style, dodge=DODGE)
        _log_y(successive, trained["angle_mean"])
        draw(successive, part[part["k"] <= 1], "k", spread=None, linestyle=":", linewidth=0.9)
        draw(successive, part[part["k"] >= 1], "k", spread="interval")
        loop_axis(successive, range(loops), loops)
        successive.set_xticks(range(loops), [str(k) for k in range(loops)])
        successive.set(xlabel="from loop k to k + 1", ylabel="")
        far = part[part["k"] >= 1].assign(k=part["k"] + 1)
        _log_y(away, trained["angle_from_first_mean"])
        lines(away, far, "k", "angle_from_first_mean", figure.style, "interval", DODGE)
        loop_axis(away, range(2, loops + 1), loops)
        away.set(xlabel="after loop k", ylabel="")
        _over_norm(figure, over, every, part, mean)
        for ax, frame, x, y in (
            (successive, part, "k", "angle_mean"),
            (away, far, "k", "angle_from_first_mean"),
        ):
            off_scale(ax, frame, x, y, figure.style)
            log_axis(ax)
    figure.axes[0, 0].set_ylabel("angle to the next\nstate, radians")
    figure.axes[1, 0].set_ylabel("angle to $H_1$,\nradians")
    figure.axes[2, 0].set_ylabel("angle to the next\nstate, radians")
    extra = [key("beyond the trained K", linestyle=":"), key("falls as 1/s", **GUIDE)]
    figure.legend(mean["cell"], extra)
    return figure


def _log_y(ax: Axes, values: pd.Series) -> None:
    ax.set_yscale("log")
    low, high = log_limits(values)
    ax.set_ylim(max(low, high * DEEPEST), high)


def _over_norm(
    figure: Panels, ax: Axes, every: pd.DataFrame, trained: pd.DataFrame, whole: pd.DataFrame
) -> None:
    """Angle of loops 2, 3, .. over the norm of the state before them, joined in their order."""
    ax.set_xscale("log")
    whole = whole[whole["k"] >= 1]
    ax.set_xlim(log_limits(whole["norm_mean"], room=0.04))
    _log_y(ax, whole["angle_mean"])
    s = np.array(ax.get_xlim())
    for product in 10.0 ** np.arange(-6, 8):
        ax.plot(s, product / s, **GUIDE, zorder=1)
    for cell, look in figure.style.items():
        for frame, over in (
            (every, BEYOND | {"label": cell}),
            (trained, {}),
        ):
            own = frame[(frame["cell"] == cell) & (frame["k"] >= 1)].sort_values("k")
            ax.plot(own["norm_mean"], own["angle_mean"], **(look.line() | over))
    log_axis(ax, "x")
    log_axis(ax)
    ax.set_xlabel("norm s of $H_k$")
