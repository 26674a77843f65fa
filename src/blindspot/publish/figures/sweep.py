"""The figure of a sweep: what the last loop of a run shows against the value that was swept.

One line a swept cell (and, where several keys were swept, each combination of the others).
"""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

from blindspot.collect.collected import Collected
from blindspot.collect.stats import over_seeds
from blindspot.publish.figures.panels import Panels, lines, log_axis, log_limits, panels
from blindspot.publish.style import CellStyle, styles
from blindspot.publish.sweeps import LOG, VALUES, measured, points, shown_value

#: Swept numbers that reach so many times as far are set on a logarithmic axis.
FAR = 4.0


def figure(c: Collected, sweep: str) -> Panels:
    """One row a value of `VALUES`, one column a size, the first swept key along x."""
    chosen = points(c, sweep)
    first, *others = chosen[0]["values"]
    values = list(dict.fromkeys(p["values"][first] for p in chosen))
    places = _places(values)
    at = pd.DataFrame(
        [
            {
                "cell": p["cell"],
                "line": ", ".join(
                    [p["of"], *(f"{k} {shown_value(p['values'][k])}" for k in others)]
                ),
                "x": places[values.index(p["values"][first])],
                "own": p["own"],
            }
            for p in chosen
        ]
    )
    frame = measured(c).merge(at, on="cell")
    mean = over_seeds(frame, ["size", "line", "x", "own"], [*VALUES], log=LOG)
    mean = mean.rename(columns={"line": "cell"})
    drawn = panels(c, c.sizes, [1.25] * len(VALUES))
    look = styles(list(dict.fromkeys(at["line"])))
    for row, (name, (heading, log)) in enumerate(VALUES.items()):
        for ax, size in zip(drawn.axes[row], c.sizes, strict=True):
            _panel(ax, mean[mean["size"] == size], mean, name, log, look)
            _swept_axis(ax, places, values)
            ax.set(xlabel=first if row == len(VALUES) - 1 else "", ylabel="")
        drawn.axes[row, 0].set_ylabel(heading.replace(" of ", "\nof ").replace(" at ", "\nat ")
                                      .replace(" by ", "\nby "))  # fmt: skip
    handles = [Line2D([], [], label=line, **style.line()) for line, style in look.items()]
    ring = {"marker": "o", "markersize": 9, "markerfacecolor": "none", "linestyle": "none"}
    handles.append(Line2D([], [], label="the cell's own value", color="black", **ring))  # type: ignore[arg-type]
    drawn.figure.legend(handles=handles, loc="outside lower center", ncols=2)
    return drawn


def _panel(
    ax: Axes,
    part: pd.DataFrame,
    whole: pd.DataFrame,
    name: str,
    log: bool,
    look: dict[str, CellStyle],
) -> None:
    """Lines with intervals, the cell's own value ringed; one scale, around all seeds of all sizes:
    an interval of few seeds may leave the panel."""
    every = pd.concat([whole[f"{name}{end}"] for end in ("", "_min", "_max")])
    finite = every[np.isfinite(every)]
    if log:
        ax.set_yscale("log")
        ax.set_ylim(log_limits(finite, room=0.12))
    elif len(finite):
        room = 0.15 * (finite.max() - finite.min()) or 0.1
        ax.set_ylim(finite.min() - room, finite.max() + room)
    held = ax.get_ylim()
    lines(ax, part, "x", name, look, "interval")
    own = part[part["own"]]
    ax.plot(own["x"], own[name], "o", color="black", markersize=9, markerfacecolor="none")
    ax.set_ylim(held)
    if log:
        log_axis(ax)
    if name == "gain":
        ax.axhline(0, color="#888888", linewidth=0.7, zorder=1)


def _places(values: list[Any]) -> list[float]:
    """Where the values stand along x: numbers by their size, all else side by side."""
    if all(isinstance(x, int | float) and not isinstance(x, bool) for x in values):
        return [float(x) for x in values]
    return [float(i) for i in range(len(values))]


def _swept_axis(ax: Axes, places: list[float], values: list[Any]) -> None:
    """Ticks at the swept values; logarithmic where they reach far."""
    if min(places) > 0 and max(places) / min(places) >= FAR:
        ax.set_xscale("log")
        ax.set_xlim(log_limits(np.array(places)))
    else:
        room = 0.08 * (max(places) - min(places)) or 1.0
        ax.set_xlim(min(places) - room, max(places) + room)
    ax.xaxis.set_major_locator(FixedLocator(places))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(FixedFormatter([shown_value(x) for x in values]))
