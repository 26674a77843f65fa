"""Figures: is the scale the cause, and what does the norm depend on?"""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

from blindspot.collect.collected import Collected
from blindspot.collect.stats import over_seeds
from blindspot.publish import causes
from blindspot.publish.figures.panels import (
    DOTS,
    NOTE,
    Panels,
    lines,
    log_axis,
    log_limits,
    nothing,
    panels,
)
from blindspot.publish.style import DASHED, SOLID, CellStyle, styles
from blindspot.publish.sweeps import shown_value
from blindspot.publish.swept import Runs, predictions

#: What keys of the config are to a reader.
WORDS = {"d_model": "width", "loops": "trained K", "init_std": "initial SD"}
DOSE = {
    "angle": ("angle of the last loop (rad)", True),
    "b-perp": ("|b⊥| at the last state", True),
    "gain": ("CE₁ − CE_K (nats)", False),
    "ce": ("CE_K (nats)", False),
}


def dose(c: Collected) -> Panels:
    """Two panels a row: what the last loop does to a direction, what all branches add across it,
    what depth gains, and the loss, against the scale."""
    frame = causes.doses(c)
    if frame.empty or not frame["judged"].any():
        return nothing(c, "this study sets no scale")
    drawn = panels(c, ["", ""], [1.7, 1.7] * len(c.sizes))
    # Cells whose scale is only steered stand where it came to.
    frame = frame.assign(x=frame["dose"].where(frame["judged"], frame["reached"]))
    look = _dose_styles(frame)
    for i, size in enumerate(c.sizes):
        own = frame[frame["size"] == size]
        at = over_seeds(own, ["of", "cell"], ["x"], log=["x"]).set_index("cell")["x"]
        positive = [name for name, (_, log) in DOSE.items() if log]
        mean = over_seeds(own, ["of", "cell"], list(DOSE), log=positive)
        mean["x"] = mean["cell"].map(at)
        mean["cell"] = mean["of"]
        axes = drawn.axes[2 * i : 2 * i + 2].ravel()
        for ax, (name, (heading, log)) in zip(axes, DOSE.items(), strict=True):
            ax.set_title(heading if len(c.sizes) == 1 else f"{heading}, {size}", loc="left")
            _value_axis(ax, mean, name, log)
            ax.set_xscale("log")
            ax.set_xlim(log_limits(mean["x"]))
            lines(ax, mean, "x", name, look, "interval")
            if name == "angle":
                _inverse(ax, mean)
            ticks = sorted(set(own.loc[own["judged"], "dose"]))
            _ticks(ax, ticks, [f"{tick:g}" for tick in ticks])
            ax.set(xlabel="", ylabel="")
        for ax in axes[2:]:
            ax.set_xlabel("RMS of the state before the last loop")
    handles = [
        Line2D([], [], label=_named(frame, of), **style.line()) for of, style in look.items()
    ]
    handles.append(Line2D([], [], label="falls as 1 / scale", color=NOTE, linestyle=DOTS))
    drawn.figure.legend(handles=handles, loc="outside lower center", ncols=2)
    return drawn


def _dose_styles(frame: pd.DataFrame) -> dict[str, CellStyle]:
    """Solid and filled where the scale is set, dashed and open where it is steered."""
    colors, markers = ("#D55E00", "#0072B2", "#009E73"), ("o", "s", "^")
    found = {}
    for i, (of, own) in enumerate(frame.groupby("of", sort=False)):
        judged = bool(own["judged"].all())
        dash = SOLID if judged else DASHED
        found[str(of)] = CellStyle(colors[i % 3], markers[i % 3], dash, judged)
    return found


def _named(frame: pd.DataFrame, of: str) -> str:
    judged = bool(frame.loc[frame["of"] == of, "judged"].all())
    return f"{of}: scale {'set' if judged else 'steered'}"


def _inverse(ax: Axes, mean: pd.DataFrame) -> None:
    """A line of slope -1 through the first point."""
    first = mean.sort_values("x").iloc[0]
    x = np.array(ax.get_xlim())
    held = ax.get_ylim()
    ax.plot(x, first["angle"] * first["x"] / x, linestyle=DOTS, color=NOTE, linewidth=1.0)
    ax.set_ylim(held)


def _value_axis(ax: Axes, mean: pd.DataFrame, name: str, log: bool) -> None:
    every = pd.concat([mean[f"{name}{end}"] for end in ("", "_min", "_max")])
    if log:
        ax.set_yscale("log")
        ax.set_ylim(log_limits(every, room=0.12))
        log_axis(ax)
        return
    room = 0.15 * float(every.max() - every.min()) or 0.1
    ax.set_ylim(every.min() - room, every.max() + room)
    if name == "gain":
        ax.axhline(0, color="#888888", linewidth=0.7, zorder=1)


def laws(c: Collected) -> Panels:
    """|H_K| against each factor, four panels a row, then predicted against measured."""
    frame = causes.by_factor(c)
    told = causes.parts(c, "predicted")
    if frame.empty or not told:
        return nothing(c, "this study fits no law")
    names = list(dict.fromkeys(frame["sweep"]))
    columns = 4
    rows = -(-(len(names) + 1) // columns)
    drawn = panels(c, [""] * columns, [1.7] * rows * len(c.sizes))
    look = styles(list(dict.fromkeys(frame["of"])))
    for i, size in enumerate(c.sizes):
        axes = drawn.axes[rows * i : rows * (i + 1)].ravel()
        own = frame[frame["size"] == size]
        limits = log_limits(own["norm"], room=0.15)
        for ax, name in zip(axes, names, strict=False):
            _factor(ax, own[own["sweep"] == name], look, limits)
        _carried(axes[len(names)], Runs(c), size, told, look)
        for ax in axes[len(names) + 1 :]:
            ax.set_axis_off()
        for ax in axes[: len(names) : columns]:
            ax.set_ylabel("|H_K|" if len(c.sizes) == 1 else f"|H_K|, {size}")
    handles: list[Any] = [Line2D([], [], label=of, **style.line()) for of, style in look.items()]
    handles.append(Line2D([], [], label="fitted power law", color=NOTE, linestyle=DOTS))
    drawn.figure.legend(handles=handles, loc="outside lower center", ncols=3)
    return drawn


def _factor(
    ax: Axes, part: pd.DataFrame, look: dict[str, CellStyle], limits: tuple[float, float]
) -> None:
    values = list(dict.fromkeys(part["value"]))
    numbers = all(isinstance(x, int | float) and x > 0 for x in values)
    places = dict(zip(values, values if numbers else range(len(values)), strict=True))
    ax.set_yscale("log")
    ax.set_ylim(limits)
    x = np.array([float(places[value]) for value in values])
    if numbers:
        ax.set_xscale("log")
        ax.set_xlim(log_limits(x, 0.12))
    else:
        ax.set_xlim(-0.4, len(values) - 0.6)
    drawn = part.assign(cell=part["of"], x=[float(places[v]) for v in part["value"]])
    drawn = drawn.sort_values("x")
    # A power law takes the place of the line through the points.
    fitted = bool(part["fitted"].any())
    bare: dict[str, Any] = {"linestyle": "none"} if fitted else {}
    lines(ax, drawn, "x", "norm", look, "interval", **bare)
    for of, own in drawn.groupby("of", sort=False):
        if fitted and len(own) > 1:
            slope, offset = np.polyfit(np.log(own["x"]), np.log(own["norm"]), 1)
            ends = np.array([x.min(), x.max()])
            color = look[str(of)].color
            ax.plot(ends, np.exp(offset) * ends**slope, linestyle=DOTS, color=color, zorder=1,
                    label=f"{of}: power law")  # fmt: skip
            _exponent(ax, own.iloc[-1], slope, color)
    ax.set_ylim(limits)
    log_axis(ax)
    # Words stand a line lower than numbers, beside which they have no room.
    _ticks(ax, list(x), [f"\n{v}" if isinstance(v, str) else _short(v) for v in values])
    key = part["key"].iloc[0].rpartition(".")[2]
    ax.set_title(WORDS.get(key, key.replace("_", " ")), loc="left")
    ax.set(xlabel="", ylabel="")


def _short(value: Any) -> str:
    return f"{value:.2g}" if isinstance(value, float) else shown_value(value)


def _exponent(ax: Axes, last: pd.Series, slope: float, color: str) -> None:
    """The exponent above the last point of its line."""
    ax.annotate(
        f"{round(slope, 2) + 0.0:+.2f}", (last["x"], last["norm_high"]), (2, 3),
        textcoords="offset points", color=color, ha="right", fontsize=7,
    )  # fmt: skip


def _carried(
    ax: Axes, runs: Runs, size: str, told: list[dict[str, Any]], look: dict[str, CellStyle]
) -> None:
    """Left-out settings: predicted against measured, with the band that counts as predicted."""
    every: list[float] = []
    for part in told:
        frame = predictions(runs, size, part)
        if frame.empty:
            continue
        frame = frame.assign(size=size)
        mean = over_seeds(frame, ["cell"], ["measured", "predicted"], log=["measured", "predicted"])
        own = look[part["cell"]]
        ax.plot(mean["measured"], mean["predicted"], linestyle="none", **_marker(own),
                label=f"{part['cell']}: left out")  # fmt: skip
        every += [*mean["measured"], *mean["predicted"]]
        # Those that the law misses have names: the others lie together.
        missed = (mean["predicted"] / mean["measured"] - 1).abs() > part["tolerance"]
        for _, row in mean[missed].iterrows():
            name = row["cell"].removeprefix(f"{part['cell']}-").rpartition("-")[2]
            left = row["predicted"] > row["measured"]
            ax.annotate(
                name, (row["measured"], row["predicted"]), (-5 if left else 5, 0),
                textcoords="offset points", ha="right" if left else "left", va="center",
                fontsize=7,
            )  # fmt: skip
    ax.set_title("left out: predicted |H_K|", loc="left")
    if not every:
        return
    low, high = log_limits(np.array(every), 0.15)
    x = np.array([low, high])
    tolerance = told[0]["tolerance"]
    ax.fill_between(
        x, x * (1 - tolerance), x * (1 + tolerance), color="#E4E4E4", linewidth=0, zorder=0
    )
    ax.plot(x, x, color=NOTE, linewidth=0.8, zorder=1)
    ax.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high))
    ax.set_xlabel("measured |H_K|")
    log_axis(ax, "x")
    log_axis(ax)


def _marker(style: CellStyle) -> dict[str, Any]:
    return {key: x for key, x in style.line().items() if key != "linestyle"}


def _ticks(ax: Axes, places: list[float], labels: list[str]) -> None:
    ax.xaxis.set_major_locator(FixedLocator(places))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(FixedFormatter(labels))
