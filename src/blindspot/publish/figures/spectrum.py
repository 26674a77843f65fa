"""Figure of blind directions: how much each is seen against how much a loop makes of it."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from blindspot.collect.collected import Collected
from blindspot.collect.stats import over_seeds
from blindspot.publish.figures.panels import (
    DOTS,
    NOTE,
    Panels,
    key,
    log_axis,
    log_limits,
    marks,
    off_scale,
    panels,
)
from blindspot.publish.spectra import RATIOS, relative
from blindspot.publish.style import CellStyle

#: Rows of panels, with what they are called.
SHOWN = {
    "radial": "radial",
    "least-visible": "least visible",
    "most-active": "most active",
    "ones": "ones",
    "mean-state": "mean state",
}
#: What is seen less than this, against a random direction, is drawn there: rounding alone.
LEAST = 1e-12
#: What is less active than this, of directions that a loop wipes out, leaves the panel.
STILL = 0.1


def spectrum(c: Collected) -> Panels:
    """One column a size, one row a direction, one marker a cell: visibility against activity after
    the last loop, both over those of a random direction."""
    mean = over_seeds(c.last(relative(c)), ["size", "cell", "direction"], RATIOS, log=RATIOS)
    figure = panels(c, c.sizes, [1.1] * len(SHOWN))
    seen, active = RATIOS
    for row, (direction, label) in enumerate(SHOWN.items()):
        every = mean[mean["direction"] == direction]
        limits = [log_limits(_held(_ends(every, name), 1.0), 0.1) for name in RATIOS]
        for ax, size in zip(figure.axes[row], c.sizes, strict=True):
            ax.set(xscale="log", yscale="log", xlim=limits[0], ylim=limits[1])
            ax.axvline(1, color=NOTE, linewidth=0.9, linestyle=DOTS, zorder=1)
            ax.axhline(1, color=NOTE, linewidth=0.9, linestyle=DOTS, zorder=1)
            part = every[every["size"] == size]
            _points(ax, part, figure.style)
            off_scale(ax, part.assign(**{seen: _held(part[seen])}), seen, active, figure.style)
            log_axis(ax, "x")
            log_axis(ax)
        figure.axes[row, 0].set_ylabel(f"{label}:\nactivity")
    for ax in figure.axes[-1]:
        ax.set_xlabel("visibility")
    figure.legend(mean["cell"], [key("a random direction", linestyle=DOTS)], points=True)
    return figure


def _ends(part: pd.DataFrame, name: str) -> pd.Series:
    """What the axis must have room for: means, and the ends of their intervals."""
    part = part if name == RATIOS[0] else part[part[name] >= STILL]
    return pd.concat([part[f"{name}{end}"].dropna() for end in ("", "_low", "_high")])


def _held(values: pd.Series, *more: float) -> np.ndarray:
    """Values that have a place on the axes."""
    return np.clip([*values, *more], LEAST, None)


def _points(ax: Axes, part: pd.DataFrame, style: dict[str, CellStyle]) -> None:
    x, y = RATIOS
    looks = marks(style)
    for cell, look in style.items():
        for _, row in part[part["cell"] == cell].iterrows():
            at = _held(row[[x, y]])
            bar: Any = {"fmt": "none", "color": look.color, "elinewidth": 0.7, "alpha": 0.6}
            across, up = (
                np.abs(_held(row[[f"{name}_low", f"{name}_high"]]) - value)[:, None]
                for name, value in zip(RATIOS, at, strict=True)
            )
            if row["seeds"] > 1:
                ax.errorbar(at[0], at[1], xerr=across, **bar)
                ax.errorbar(at[0], at[1], yerr=up, label=cell, **bar)
            ax.plot(*at, label=cell, zorder=3, **looks[cell])
