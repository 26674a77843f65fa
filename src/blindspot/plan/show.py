"""How tables, times and sizes are shown at the terminal."""

from collections.abc import Sequence

from rich.table import Table

#: What needs a number that is not known yet.
UNKNOWN = "-"


def table(names: Sequence[str], numbers: Sequence[str] = (), texts: Sequence[str] = ()) -> Table:
    """A table without rules; `numbers` are right-aligned, and `texts` may take several lines."""
    shown = Table(box=None, pad_edge=False, header_style="bold")
    for name in names:
        shown.add_column(
            name,
            justify="right" if name in numbers else "left",
            no_wrap=name not in texts,
            overflow="fold" if name in texts else "ellipsis",
        )
    return shown


def duration(seconds: float) -> str:
    """`42 s`, `3 min 05 s`, `2 h 10 min`, `3 d 4 h`."""
    s = round(seconds)
    if s < 60:
        return f"{s} s"
    if s < 3600:
        return f"{s // 60} min {s % 60:02d} s"
    if s < 86400:
        return f"{s // 3600} h {s % 3600 // 60:02d} min"
    return f"{s // 86400} d {s % 86400 // 3600} h"


def hours(seconds: float | None) -> str:
    """Hours, in three digits: `0.25`, `16.2`, `2,400`; what is not known is a dash."""
    if seconds is None:
        return UNKNOWN
    value = seconds / 3600
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2g}"


def bytes_of(size: int) -> str:
    """`512 B`, `1.5 kB`, `3.2 GB`: powers of 1,000, as `ls -h --si` has them."""
    value = float(size)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"
