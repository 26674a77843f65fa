"""Figures: what holds the norm and what it costs; and how deep a model may be read."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator
from matplotlib.transforms import Bbox

from blindspot.collect.collected import Collected
from blindspot.publish import causes
from blindspot.publish.figures.panels import (
    NOTE,
    Panels,
    key,
    log_axis,
    log_limits,
    nothing,
    off_scale,
    panels,
    unigram,
)
from blindspot.publish.style import CellStyle

#: Areas of the largest and the smallest point, in points squared.
AREAS = (170.0, 30.0)
#: Gains within this, in nats, stand on a linear part of the axis.
LINEAR = 0.1
HELD, GREW = "#1F1F1F", "#B8B8B8"


def remedies(c: Collected) -> Panels:
    """One plane a size: |H_K| / |H_0| (log) against CE_1 - CE_K; the larger a point, the lower its
    CE_K; dark where the norm is held; ringed on the Pareto front of gain and CE_K."""
    if not any(part["of"] == "growth" for part in causes.parts(c, "value")):
        return nothing(c, "this study compares no remedies")
    mean = causes.plane(c)
    drawn = panels(c, c.sizes, [4.6])
    drawn.figure.set_figwidth(7.0)
    for ax, size in zip(drawn.axes[0], c.sizes, strict=True):
        _plane(ax, mean[mean["size"] == size].reset_index(drop=True))
    drawn.axes[0, 0].set_ylabel("|H_K| / |H_0|")
    span = (float(mean["ce"].min()), float(mean["ce"].max()))
    handles = [
        _point(f"CE_K {ce:.2f} nats", _area(ce, span), "#777777")
        for ce in dict.fromkeys(np.round(np.linspace(*span, 3), 2))
    ]
    handles += [_point("norm held (at most 2 times)", 60, HELD)]
    handles += [_point("norm not held", 60, GREW)]
    ring = {"marker": "o", "markersize": 11, "markerfacecolor": "none", "linestyle": "none"}
    handles.append(key("Pareto front of gain and CE_K", color="black", **ring))
    drawn.figure.legend(handles=handles, loc="outside lower center", ncols=3)
    return drawn


def _plane(ax: Axes, mean: pd.DataFrame) -> None:
    span = (float(mean["ce"].min()), float(mean["ce"].max()))
    ax.set_yscale("log")
    ax.set_ylim(log_limits(np.array([*mean["growth"], 2.0]), 0.12))
    gains = mean["gain"]
    far = max(abs(gains.min()), abs(gains.max())) > 10 * LINEAR
    if far:
        ax.set_xscale("symlog", linthresh=LINEAR, linscale=1.0)
    low, high = float(gains.min()), float(gains.max())
    room = 0.15 * (high - low) or 0.05
    ax.set_xlim(min(low, 0) - (0.05 if far else room), high * (2.2 if far else 1) + room)
    if far:
        marks = [x for x in (-1.0, -0.1, 0.0, 0.05, 0.1, 1.0, 10.0) if _inside(ax, x)]
        ax.xaxis.set_major_locator(FixedLocator(marks))
        ax.xaxis.set_major_formatter(FixedFormatter([f"{x:g}" for x in marks]))
        ax.xaxis.set_minor_locator(NullLocator())
    ax.axhspan(ax.get_ylim()[0], 2, color="#F1F1F1", linewidth=0, zorder=0)
    ax.axvline(0, color="#888888", linewidth=0.7, zorder=1)
    for _, row in mean.iterrows():
        color = HELD if row["holds"] else GREW
        at = (row["gain"], row["growth"])
        if row["gain_low"] < row["gain_high"]:
            ax.plot([row["gain_low"], row["gain_high"]], [at[1]] * 2, color=NOTE, linewidth=0.7,
                    label=f"{row['cell']}: interval of the gain")  # fmt: skip
        if row["growth_low"] < row["growth_high"]:
            ends = [row["growth_low"], row["growth_high"]]
            ax.plot([at[0]] * 2, ends, color=NOTE, linewidth=0.7,
                    label=f"{row['cell']}: interval of the growth")  # fmt: skip
        area = _area(row["ce"], span)
        ax.scatter(*at, s=area, color=color, edgecolor="black", linewidth=0.6, zorder=3,
                   label=f"{row['cell']} (CE_K {row['ce']:.4f})")  # fmt: skip
        if row["front"]:
            ring = (math.sqrt(area) + 5) ** 2
            ax.scatter(*at, s=ring, facecolor="none", edgecolor="black", linewidth=1.1, zorder=3)
    ax.set_xlabel("CE_1 − CE_K (nats): what loops 2 to K gain")
    log_axis(ax)
    _names(ax, mean, [_area(ce, span) for ce in mean["ce"]])


def _inside(ax: Axes, x: float) -> bool:
    low, high = ax.get_xlim()
    return low <= x <= high


def _area(ce: float, span: tuple[float, float]) -> float:
    """The lower the loss, the larger the point."""
    share = (ce - span[0]) / (span[1] - span[0]) if span[1] > span[0] else 0.0
    return AREAS[0] + (AREAS[1] - AREAS[0]) * share


def _point(label: str, area: float, color: str) -> Line2D:
    return key(
        label, marker="o", linestyle="none", markersize=math.sqrt(area),
        markerfacecolor=color, markeredgecolor="black", markeredgewidth=0.6,
    )  # fmt: skip


def _names(ax: Axes, mean: pd.DataFrame, areas: Sequence[float]) -> None:
    """The name of each cell beside its point, where it covers neither a point nor another name; a
    thin line leads to it where it stands away."""
    figure = ax.figure
    figure.canvas.draw()  # the layout is what it will be
    renderer: Any = figure.canvas.get_renderer()  # type: ignore[attr-defined]
    scale = figure.dpi / 72
    points = ax.transData.transform(mean[["gain", "growth"]].to_numpy())
    radii = [
        (math.sqrt(area) / 2 + (5 if front else 3)) * scale
        for area, front in zip(areas, mean["front"], strict=True)
    ]
    taken = [
        Bbox.from_extents(x - r, y - r, x + r, y + r)
        for (x, y), r in zip(points, radii, strict=True)
    ]
    taken += _bars(ax, mean)
    inside = ax.get_window_extent(renderer)
    # What has the least room comes first.
    crowd = [sum(1 / (1 + np.hypot(*(p - q)) ** 2) for q in points) for p in points]
    for i in sorted(range(len(points)), key=lambda i: -crowd[i]):
        weight = "bold" if mean["front"][i] else "normal"
        text = ax.text(0, 0, mean["cell"][i], fontsize=6.5, fontweight=weight, zorder=4)
        extent = text.get_window_extent(renderer)
        best, fits = None, False
        for away in (2, 9, 18, 28, 40, 54, 70, 90):
            for angle in (0, 180, 35, -35, 145, -145, 90, -90, 65, -65, 115, -115):
                box = _beside(points[i], radii[i] + away * scale, angle, extent)
                free = not any(box.overlaps(other) for other in taken)
                if free and inside.contains(box.x0, box.y0) and inside.contains(box.x1, box.y1):
                    best, fits = box, True
                    break
            if fits:
                break
        box = best or _beside(points[i], radii[i], 0, extent)
        taken.append(box.padded(1.5))
        x, y = ax.transData.inverted().transform((box.x0, box.y0 + extent.height * 0.2))
        text.set_position((float(x), float(y)))
        end = np.clip(points[i], (box.x0, box.y0), (box.x1, box.y1))
        if np.hypot(*(end - points[i])) > radii[i] + 6 * scale:
            line = ax.transData.inverted().transform([points[i], end])
            ax.plot(line[:, 0], line[:, 1], color="#999999", linewidth=0.5, zorder=2)


def _bars(ax: Axes, mean: pd.DataFrame) -> list[Bbox]:
    """Where intervals are drawn."""
    found = []
    for _, row in mean.dropna(subset=["gain_ci"]).iterrows():
        for low, high in (
            ((row["gain_low"], row["growth"]), (row["gain_high"], row["growth"])),
            ((row["gain"], row["growth_low"]), (row["gain"], row["growth_high"])),
        ):
            found.append(Bbox(ax.transData.transform([low, high])).padded(1.0))
    return found


def _beside(point: np.ndarray, away: float, angle: float, extent: Bbox) -> Bbox:
    """A box of this extent whose nearest edge is `away` from a point, in a direction."""
    c, s = math.cos(math.radians(angle)), math.sin(math.radians(angle))
    x, y = point[0] + away * c, point[1] + away * s
    x0 = x - extent.width * (1 - c) / 2
    y0 = y - extent.height * (1 - s) / 2
    return Bbox.from_bounds(x0, y0, extent.width, extent.height)


#: Looks of the trained K in turn, from light to dark.
GREYS = ("#9ECAE1", "#6BAED6", "#3182BD", "#08519C", "#08306B")
MARKERS = ("o", "s", "^", "D", "P")


def horizon(c: Collected) -> Panels:
    """CE against the exit, on a logarithmic axis; one column a size and swept cell, one line a
    trained K, whose own exit is marked large."""
    deepest = max(c.study["measurement"]["depths_beyond"], default=0)
    if deepest < 4 * c.deepest:
        return nothing(c, "this study scores no exits far beyond its K")
    mean = causes.exits(c)
    groups = list(dict.fromkeys(mean["group"]))
    columns = [(size, name) for size in c.sizes for name in groups]
    titles = [name if len(c.sizes) == 1 else f"{name}, {size}" for size, name in columns]
    drawn = panels(c, titles, [2.6])
    limit = c.baseline("unigram")
    top = min(float(mean["ce"].max()), limit + 0.3)
    room = 0.06 * (top - float(mean["ce"].min())) or 0.1
    every = list(dict.fromkeys(mean.sort_values("loops", kind="stable")["cell"]))
    looks: dict[str, CellStyle] = {}
    for ax, (size, name) in zip(drawn.axes[0], columns, strict=True):
        part = mean[(mean["size"] == size) & (mean["group"] == name)]
        cells = [cell for cell in every if cell in set(part["cell"])]
        labels = {cell: _label(c, cell, name) for cell in cells}
        for label in labels.values():
            looks.setdefault(label, _look(len(looks)))
        look = {cell: looks[label] for cell, label in labels.items()}
        ax.set_xscale("log", base=2)
        ax.set_xlim(0.85, deepest * 1.5)
        ax.set_ylim(float(mean["ce"].min()) - room, top + room)
        for cell in cells:
            _line(ax, part[part["cell"] == cell].sort_values("k"), look[cell], c)
        off_scale(ax, part, "k", "ce", look)
        ticks = [2**i for i in range(int(math.log2(deepest)) + 1)]
        ax.xaxis.set_major_locator(FixedLocator(ticks))
        ax.xaxis.set_major_formatter(FixedFormatter([str(tick) for tick in ticks]))
        ax.xaxis.set_minor_locator(NullLocator())
        ax.set_xlabel("read after loop k")
    drawn.axes[0, 0].set_ylabel("CE (nats)")
    shown = unigram(drawn.axes[0], limit)
    big = {"marker": "o", "markersize": 8, "markerfacecolor": "white", "linestyle": "none"}
    handles = [Line2D([], [], label=label, **look.line()) for label, look in looks.items()]
    handles += [key("read at the trained K", color="black", **big), *shown]
    wide = 4 if len(columns) > 1 else 2
    drawn.figure.legend(handles=handles, loc="outside lower center", ncols=wide)
    return drawn


def _look(at: int) -> CellStyle:
    return CellStyle(GREYS[at % len(GREYS)], MARKERS[at % len(MARKERS)], "-", True)


def _line(ax: Axes, part: pd.DataFrame, look: CellStyle, c: Collected) -> None:
    drawn = look.line() | {"label": part["cell"].iloc[0]}
    ax.fill_between(part["k"], part["ce_min"], part["ce_max"], color=look.color, alpha=0.2,
                    linewidth=0, label=drawn["label"])  # fmt: skip
    ax.plot(part["k"], part["ce"], markersize=3.5, **{k: x for k, x in drawn.items()})
    own = part[part["k"] == part["loops"]]
    big = {"markersize": 8, "markerfacecolor": "white", "markeredgewidth": 1.6}
    ax.plot(own["k"], own["ce"], zorder=4, **drawn | big | {"linestyle": "none"})


def _label(c: Collected, cell: str, group: str) -> str:
    """Its trained K, of a cell of the sweep; of another one what sets it apart."""
    swept = {p["cell"] for found in c.study.get("sweeps", {}).values() for p in found}
    own = cell in swept or cell == group
    return f"trained at K = {c.loops_of[cell]}" if own else cell.removeprefix(f"{group}-")
