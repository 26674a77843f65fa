"""How figures look: one colour, marker and line a cell, sizes for a two-column paper, and files
whose bytes depend on the data alone.

Solid lines and filled markers are cells trained at every loop, dashed lines and open markers
cells trained at the last loop: so prints without colour can be read. Colours are Okabe and Ito's
(safe for colour-blind readers), with grey in the place of yellow, which is lost on white.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from blindspot.files import atomic_path

#: Width of two columns, and of one panel that stands alone, in inches.
WIDTH, NARROW = 7.0, 4.6
DPI = 300

SOLID: Any = "-"
DASHED: Any = (0, (4, 1.5))


@dataclass(frozen=True)
class CellStyle:
    """`dash` is a matplotlib line style; `filled` says whether the marker's face is coloured."""

    color: str
    marker: str
    dash: Any
    filled: bool

    def line(self) -> dict[str, Any]:
        """Keyword arguments for a line with markers."""
        return {
            "color": self.color,
            "marker": self.marker,
            "linestyle": self.dash,
            "markerfacecolor": self.color if self.filled else "white",
            "markeredgecolor": self.color,
        }


KNOWN = {
    "terminal-rms": CellStyle("#000000", "o", DASHED, False),
    "terminal-raw": CellStyle("#56B4E9", "s", DASHED, False),
    "terminal-rms-penalty": CellStyle("#7F7F7F", "D", DASHED, False),
    "perloop-rms": CellStyle("#D55E00", "o", SOLID, True),
    "perloop-raw": CellStyle("#0072B2", "s", SOLID, True),
    "perloop-finalnorm": CellStyle("#E69F00", "^", SOLID, True),
    "perloop-rms-penalty": CellStyle("#009E73", "D", SOLID, True),
    "perloop-rms-interloop": CellStyle("#CC79A7", "v", SOLID, True),
}
# For cells of a study of one's own: colours of Tol's `muted`, apart from those above.
_COLORS = ("#332288", "#882255", "#117733", "#999933", "#44AA99", "#AA4499")
_MARKERS = ("P", "X", "<", ">", "p", "h")
_DASHES: tuple[Any, ...] = ((0, (1, 1)), (0, (5, 1, 1, 1)), (0, (7, 2)))


def styles(cells: Sequence[str]) -> dict[str, CellStyle]:
    """A style for each cell of a study, none twice.

    Known cells have theirs. Another name decides its own style by its hash; a cell that is named
    after a known one (`perloop-rms-small-init`) keeps that one's colour. Where two would look the
    same, the later in the config moves on, so pass all cells of the study, missing ones too.
    """
    chosen: dict[str, CellStyle] = {}
    for cell in cells:
        if cell in KNOWN:
            chosen[cell] = KNOWN[cell]
            continue
        parents = [name for name in KNOWN if cell.startswith(f"{name}-")]
        parent = KNOWN[max(parents, key=len)] if parents else None
        colors = (parent.color,) if parent else _COLORS
        options = [
            CellStyle(color, marker, dash, parent.filled if parent else True)
            for dash in _DASHES
            for marker in _MARKERS
            for color in colors
        ]
        start = int(hashlib.sha256(cell.encode()).hexdigest(), 16) % len(options)
        order = options[start:] + options[:start]
        chosen[cell] = next((s for s in order if s not in chosen.values()), order[0])
    return chosen


_RC: Mapping[str, Any] = {
    "font.family": "DejaVu Sans",  # shipped with matplotlib: the same on every machine
    "font.size": 8,
    "axes.titlesize": 8.5,
    "axes.titleweight": "bold",
    "axes.labelsize": 8,
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
    "legend.fontsize": 7.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "axes.edgecolor": "#444444",
    "xtick.color": "#444444",
    "ytick.color": "#444444",
    "xtick.labelcolor": "black",
    "ytick.labelcolor": "black",
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "axes.grid": True,
    "grid.color": "#E6E6E6",
    "grid.linewidth": 0.5,
    "axes.axisbelow": True,
    "lines.linewidth": 1.3,
    "lines.markersize": 4.2,
    "lines.markeredgewidth": 1.0,
    "legend.frameon": False,
    "legend.handlelength": 3.0,
    "pdf.fonttype": 42,  # TrueType: Type 3 fonts are refused by publishers
    "ps.fonttype": 42,
    "svg.hashsalt": "blindspot",
    "savefig.dpi": DPI,
}


@contextmanager
def theme() -> Iterator[None]:
    """Our settings over the library's own defaults: a user's matplotlibrc has no influence."""
    ours: Any = {**mpl.rcParamsDefault, **_RC}
    del ours["backend"]
    with mpl.rc_context(ours):
        yield


def save(figure: Figure, out: Path, name: str) -> None:
    """Write `out/name.pdf` and `out/name.png`; equal figures give equal bytes."""
    # Dates and versions would make every redrawing look like a change.
    for suffix, metadata in (
        (".pdf", {"CreationDate": None, "ModDate": None, "Creator": None, "Producer": None}),
        (".png", {"Software": None}),
    ):
        with atomic_path(out / f"{name}{suffix}") as temporary:
            figure.savefig(temporary, metadata=metadata)
