"""What all figures share: panels, legend, lines with their spread, and points off the scale."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import matplotlib as mpl
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.textpath import TextPath
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator
from matplotlib.transforms import Affine2D, ScaledTranslation

from blindspot.collect.collected import Collected
from blindspot.publish.style import NARROW, WIDTH, CellStyle, styles

#: Ink for what is not data: notes, reference lines.
NOTE = "#555555"
#: Reference lines: fine dots, and the unigram model's dash-dot.
DOTS: Any = (0, (1, 1.5))
UNIGRAM: Any = (0, (5, 1.5, 1, 1.5))
#: Distance of neighbouring cells along an axis of loops.
DODGE = 0.045


@dataclass
class Panels:
    """A figure with one column a size. `axes` has shape (rows, sizes)."""

    figure: Figure
    axes: np.ndarray
    collected: Collected
    style: dict[str, CellStyle]

    def legend(
        self, cells: Sequence[str], extra: Sequence[Line2D] = (), points: bool = False
    ) -> None:
        """Below all panels: the cells that are drawn, in the order of the config; with `points` as
        markers without lines."""
        joined = {cell: look.line() for cell, look in self.style.items()}
        looks = marks(self.style) if points else joined
        handles = [
            Line2D([], [], label=cell, **looks[cell])
            for cell in self.collected.cells
            if cell in set(cells)
        ]
        handles += extra
        columns = 4 if self.figure.get_figwidth() > NARROW else 2
        spacing = 1.6
        # As many columns as have room: names may be long.
        while columns > 1 and _width(handles, columns, spacing) > 72 * self.figure.get_figwidth():
            columns -= 1
        # Panels have room for some rows below them; more would be drawn over them.
        rows = -(-len(handles) // columns)
        line = mpl.rcParams["legend.labelspacing"] + 1
        size = FontProperties(size=mpl.rcParams["legend.fontsize"]).get_size_in_points()
        more = max(0, rows - ROWS) * line * size / 72
        self.figure.set_figheight(self.figure.get_figheight() + more)
        self.figure.legend(
            handles=handles,
            loc="outside lower center",
            ncols=min(columns, len(handles)),
            columnspacing=spacing,
        )


def _width(handles: Sequence[Line2D], columns: int, spacing: float) -> float:
    """Width in points of a legend with these columns, which are filled one after the other."""
    rc = mpl.rcParams
    size = FontProperties(size=rc["legend.fontsize"]).get_size_in_points()
    texts = [
        TextPath((0, 0), str(h.get_label()), size=size).get_extents().width / size for h in handles
    ]
    parts = [part for part in np.array_split(np.array(texts), columns) if part.size]
    beside = rc["legend.handlelength"] + rc["legend.handletextpad"]
    ems = sum(part.max() + beside for part in parts) + spacing * (len(parts) - 1)
    return float(size * (ems + 2 * (rc["legend.borderpad"] + rc["legend.borderaxespad"])))


#: Rows of a legend that a figure has room for as it is.
ROWS = 6
#: Fills of markers, besides the cell's own.
FILLS = ("full", "none", "left", "bottom", "right", "top")


def marks(style: dict[str, CellStyle]) -> dict[str, dict[str, Any]]:
    """Keyword arguments for the marker of each cell where it has no line, whose dash would tell it
    apart: no two cells have one marker and one fill, as long as there are any."""
    found: dict[str, dict[str, Any]] = {}
    taken: set[tuple[str, str]] = set()
    for cell, look in style.items():
        own = "full" if look.filled else "none"
        free = [fill for fill in (own, *FILLS) if (look.marker, fill) not in taken]
        fill = free[0] if free else own
        taken.add((look.marker, fill))
        half = fill not in ("full", "none")
        found[cell] = look.line() | {
            "linestyle": "none",
            "markerfacecolor": "white" if fill == "none" else look.color,
            "fillstyle": fill if half else "full",
            "markerfacecoloralt": "white",
        }
    return found


def panels(collected: Collected, titles: Sequence[str], heights: Sequence[float]) -> Panels:
    """One column a title (mostly a size), one row a height (inches of axes, roughly)."""
    width = WIDTH if len(titles) > 1 else NARROW
    layout = ConstrainedLayoutEngine(w_pad=0.05, h_pad=0.05, hspace=0.04, wspace=0.03)
    figure = Figure(figsize=(width, sum(heights) + 0.75), layout=layout)
    FigureCanvasAgg(figure)
    axes = figure.subplots(
        len(heights), len(titles), squeeze=False, gridspec_kw={"height_ratios": list(heights)}
    )
    for ax, title in zip(axes[0], titles, strict=True):
        ax.set_title(title, loc="left")
    return Panels(figure, axes, collected, styles(collected.cells))


def nothing(collected: Collected, why: str) -> Panels:
    """A figure that a study cannot have, saying so."""
    figure = panels(collected, [""], [1.0])
    ax = figure.axes[0, 0]
    ax.text(0.5, 0.5, why, transform=ax.transAxes, ha="center")
    ax.set_axis_off()
    return figure


def lines(
    ax: Axes,
    frame: pd.DataFrame,
    x: str,
    y: str,
    style: dict[str, CellStyle],
    spread: Literal["range", "interval"] | None = "range",
    dodge: float = 0.0,
    named: str = "",
    **over: Any,
) -> None:
    """One line a cell through the means `y` over `x`, with the spread over seeds.

    `frame` comes from `stats.over_seeds`. The spread is a band from the lowest to the highest seed
    (`range`; for curves with many points, where t-intervals of three seeds would hide each other)
    or bars of the 95 % t-interval (`interval`). With one seed there is none. On a log axis values
    are to be `log` in `over_seeds`, so that no interval ends at zero. Infinite values are left out
    of the line; `off_scale` shows them. `dodge` is the distance in x between neighbouring
    cells of the config, so that intervals at one depth stand side by side. Long lines carry few
    markers, not at one place. `named` follows the cell's name in the figure's numbers (drawn.py).
    Set the limits first.
    """
    shift = _shifts(style, dodge)
    for at, cell in enumerate(style):
        look = style[cell]
        part = frame[(frame["cell"] == cell) & np.isfinite(frame[y])].sort_values(x)
        if part.empty:
            continue
        # Aside on the paper, not in the data (drawn.py reads those off).
        aside: dict[str, Any] = {}
        if dodge:
            aside["transform"] = Affine2D().translate(shift[cell], 0) + ax.transData
        if spread == "range" and (part["seeds"] > 1).any():
            low, high = part[f"{y}_min"], part[f"{y}_max"]
            ax.fill_between(part[x], low, high, color=look.color, alpha=0.2, linewidth=0,
                            label=f"{cell}{named}", **aside)  # fmt: skip
        if spread == "interval":
            _bars(ax, part, x, y, color=look.color, label=f"{cell}{named}", **aside)
        every = (at % 8 * len(part) // 64, max(1, len(part) // 8)) if len(part) > 12 else 1
        drawn = look.line() | {"markevery": every} | aside | over
        sns.lineplot(data=part, x=x, y=y, ax=ax, errorbar=None, legend=False, **drawn)
        ax.lines[-1].set_label(f"{cell}{named}")


def _bars(ax: Axes, part: pd.DataFrame, x: str, y: str, **look: Any) -> None:
    """Intervals of the points that are on the panel: a bar of one that is not says nothing."""
    bottom, top = ax.get_ylim()
    low, high = part[f"{y}_low"], part[f"{y}_high"]
    part = part[(low < high) & part[y].between(bottom, top)]
    if part.empty:
        return
    reach = np.array([part[y] - part[f"{y}_low"], part[f"{y}_high"] - part[y]])
    ax.errorbar(part[x], part[y], reach, fmt="none", elinewidth=0.8, capsize=1.5, **look)


def unigram(axes: Iterable[Axes], at: float) -> list[Line2D]:
    """Lines across at what a model of token frequencies alone reaches, where the limits, which are
    set, have room for it; and their entry of the legend, if there is one."""
    held = [ax for ax in axes if ax.get_ylim()[0] <= at <= ax.get_ylim()[1]]
    for ax in held:
        ax.axhline(at, linestyle=UNIGRAM, color=NOTE, linewidth=0.9, zorder=1)
    return [key("unigram model", linestyle=UNIGRAM)] if held else []


def key(label: str, **look: Any) -> Line2D:
    """An entry of the legend for what belongs to no cell."""
    drawn: dict[str, Any] = {"color": NOTE, "linewidth": 0.9} | look
    return Line2D([], [], label=label, **drawn)


def _shifts(style: dict[str, CellStyle], dodge: float) -> dict[str, float]:
    # Many cells stand closer, so that those of one depth stay apart from those of the next.
    dodge = min(dodge, 0.8 / max(1, len(style) - 1))
    return {cell: dodge * (i - (len(style) - 1) / 2) for i, cell in enumerate(style)}


def off_scale(
    ax: Axes, frame: pd.DataFrame, x: str, y: str, style: dict[str, CellStyle], lift: float = 0.0
) -> int:
    """Mark points outside the y-limits by triangles at the edge they left by, and count them.

    Call after the limits are set. On a log axis zero and below leave by the bottom. Triangles of
    cells that leave at one place stand side by side. The count stands above the panel, `lift`
    points higher where something else is there.
    """
    low, high = ax.get_ylim()
    above, below = frame[frame[y] > high], frame[frame[y] < low]
    scale = ax.figure.dpi_scale_trans
    for rows, edge, marker in ((above, 0.98, "^"), (below, 0.02, "v")):
        cells = [cell for cell in style if cell in set(rows["cell"])]
        for i, cell in enumerate(cells):
            at = rows.loc[rows["cell"] == cell, x]
            look = style[cell]
            aside = ScaledTranslation(5.5 / 72 * (i - (len(cells) - 1) / 2), 0, scale)
            ax.plot(
                at,
                np.full(len(at), edge),
                marker,
                color=look.color,
                markerfacecolor=look.color if look.filled else "white",
                markersize=4,
                transform=ax.get_xaxis_transform() + aside,
                clip_on=False,
                zorder=5,
            )
    count = len(above) + len(below)
    if count:
        note = f"{count} point{'s' if count > 1 else ''} off the scale"
        _above(ax, ax.get_xlim()[1], note, "right", lift)
    return count


def log_limits(values: np.ndarray | pd.Series, room: float = 0.06) -> tuple[float, float]:
    """Limits of a log axis around the positive, finite values, with a margin at both ends."""
    x = np.asarray(values, dtype=float)
    x = x[np.isfinite(x) & (x > 0)]
    low, high = (float(x.min()), float(x.max())) if x.size else (1.0, 10.0)
    margin = max(high / low, 1.2) ** room
    return low / margin, high * margin


def log_axis(ax: Axes, which: Literal["x", "y"] = "y") -> None:
    """Log ticks that are readable numbers, enough of them on a short range."""
    axis = ax.yaxis if which == "y" else ax.xaxis
    low, high = ax.get_ylim() if which == "y" else ax.get_xlim()
    decades = np.log10(high / low)
    if decades < 0.8:
        bins = 6 if which == "y" else 4  # labels side by side take more room
        axis.set_major_locator(MaxNLocator(bins, steps=[1, 2, 2.5, 5, 10], min_n_ticks=3))
    else:
        subs = (1.0, 2.0, 5.0) if decades < 1.6 else (1.0, 3.0) if decades < 2.5 else (1.0,)
        axis.set_major_locator(LogLocator(subs=subs, numticks=12 if decades < 2.5 else 7))
    show = thousands if which == "x" else plain
    axis.set_major_formatter(FuncFormatter(lambda value, _: show(value)))
    axis.set_minor_locator(NullLocator())
    axis.set_minor_formatter(NullFormatter())


def thousands(value: float) -> str:
    """A short tick label, for axes along which labels stand side by side: 50k."""
    return f"{value / 1000:g}k" if 1000 <= value < 1e6 else plain(value)


def plain(value: float) -> str:
    """A tick label: 0.05, 12, 3,000, and powers of ten beyond."""
    if value >= 1e6 or 0 < value < 1e-3:
        exponent = int(np.floor(np.log10(value) + 1e-9))
        factor = value / 10.0**exponent
        head = "" if abs(factor - 1) < 1e-6 else f"{factor:.3g}\\times"
        return f"${head}10^{{{exponent}}}$"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def symlog_axis(ax: Axes, values: pd.Series, linear: float) -> None:
    """A y-axis for values of both signs: linear within `linear` of zero, logarithmic beyond."""
    x = values[np.isfinite(values)]
    low, high = min(float(x.min()), -linear), max(float(x.max()), linear)
    ax.set_yscale("symlog", linthresh=linear, linscale=0.6)
    ax.set_ylim(low * (1.6 if low < -linear else 1.3), high * (1.6 if high > linear else 1.3))
    decades = [10.0**i for i in range(-12, 13)]
    marks = [m for m in decades if linear <= m <= max(-low, high) * 1.6]
    step = 1 + len(marks) // 4  # few labels on a low panel
    marks = marks[::step]
    ticks = [-m for m in marks if -m >= low * 1.6] + [0.0] + [m for m in marks if m <= high * 1.6]
    ax.set_yticks(ticks, [("−" if t < 0 else "") + plain(abs(t)) for t in ticks])
    ax.yaxis.set_minor_locator(NullLocator())


def loop_axis(ax: Axes, depths: Sequence[int], loops: int, named: bool = True) -> None:
    """Ticks at the loops, H_0 by its name, and the depths beyond the trained K set apart (shaded,
    and with a note where `named`)."""
    ax.set_xticks(list(depths), ["$H_0$" if k == 0 else str(k) for k in depths])
    ax.set_xlim(min(depths) - 0.3, max(depths) + 0.3)
    ax.grid(axis="x", visible=False)
    if max(depths) > loops:
        ax.axvspan(loops + 0.5, max(depths) + 0.3, color="#F3F3F3", linewidth=0, zorder=0)
        if named:
            _above(ax, loops + 0.5, "beyond the trained K", ha="left")


def _above(ax: Axes, x: float, text: str, ha: str, lift: float = 0.0) -> None:
    """A note on top of the panel, where no data can be, at `x` in data units."""
    ax.annotate(
        text,
        (x, 1),
        (0, 3 + lift),
        xycoords=ax.get_xaxis_transform(),
        textcoords="offset points",
        ha=ha,
        fontsize=6.5,
        color=NOTE,
    )


def step_axis(ax: Axes, steps: pd.Series) -> None:
    """Optimizer steps from 0 to the end of training."""
    ax.set_xlim(0, steps.max() * 1.02)
    ax.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: thousands(value)))
    ax.set_xlabel("optimizer step")
