"""What a figure shows, as numbers: every mark that stands for data, read off the figure itself.

Marks with a label are data (`panels.lines` labels what it draws); guides, shades and the triangles
of points off the scale have none. A point off the scale is there with its value.
"""

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection, PolyCollection
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure

#: `row` and `column` of the panel, from the top left; its title, and what its axes are; the name of
#: the curve or point. `low` and `high`: ends of its bar or band, where it has one.
COLUMNS = ["row", "column", "panel", "x_axis", "y_axis", "series", "x", "y", "low", "high"]


def drawn(figure: Figure) -> pd.DataFrame:
    """`COLUMNS`, one row a point, in the order of drawing; coordinates are those of the axes."""
    panels = {_place(ax): ax for ax in figure.axes if ax.get_subplotspec() is not None}
    parts = []
    for (row, column), ax in panels.items():
        points = pd.DataFrame(_points(ax), columns=["series", "x", "y"])
        spreads = pd.DataFrame(_spreads(ax), columns=["series", "x", "low", "high"])
        spreads = spreads.drop_duplicates(["series", "x"])
        # Loop 1 ends one part of a line and begins the next.
        both = points.drop_duplicates().merge(spreads, on=["series", "x"], how="left")
        above = [panels[place] for place in sorted(panels) if place[1] == column]
        beside = [panels[place] for place in sorted(panels) if place[0] == row]
        words = {
            "row": row,
            "column": column,
            "panel": _plain(ax.get_title(loc="left") or above[0].get_title(loc="left")),
            "x_axis": _plain(ax.get_xlabel() or above[-1].get_xlabel()),
            "y_axis": _plain(ax.get_ylabel() or beside[0].get_ylabel()),
        }
        parts.append(both.assign(**words)[COLUMNS])
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=COLUMNS)


def _place(ax: Axes) -> tuple[int, int]:
    spec: Any = ax.get_subplotspec()
    return spec.rowspan.start + 1, spec.colspan.start + 1


def _points(ax: Axes) -> Iterator[tuple[str, float, float]]:
    for line in ax.lines:
        if _is_data(line):
            x, y = (np.asarray(v, dtype=float) for v in line.get_data(orig=True))
            yield from ((str(line.get_label()), *at) for at in zip(x, y, strict=True))
    for marks in ax.collections:
        if isinstance(marks, PathCollection) and _is_data(marks):
            offsets = np.asarray(marks.get_offsets(), dtype=float)
            yield from ((str(marks.get_label()), x, y) for x, y in offsets)


def _spreads(ax: Axes) -> Iterator[tuple[str, float, float, float]]:
    """Bars and bands: x, and both ends."""
    for bars in ax.containers:
        if isinstance(bars, ErrorbarContainer) and _is_data(bars):
            for collection in bars.lines[2]:
                for (x, low), (_, high) in collection.get_segments():
                    yield str(bars.get_label()), float(x), float(low), float(high)
    for band in ax.collections:
        if isinstance(band, PolyCollection) and _is_data(band):
            vertices = pd.DataFrame(band.get_paths()[0].vertices, columns=["x", "y"])
            ends = vertices.groupby("x")["y"].agg(["min", "max"])
            for x, (low, high) in zip(ends.index, ends.to_numpy(), strict=True):
                yield str(band.get_label()), float(x), float(low), float(high)


def _is_data(artist: Any) -> bool:
    return bool(artist.get_label()) and not str(artist.get_label()).startswith("_")


def _plain(text: str) -> str:
    """A title or label without its mathematics and line breaks."""
    return re.sub(r"\\bf|[${}]", "", text).replace("\n", " ").strip()
