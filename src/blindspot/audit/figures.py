"""Three figures of an audit, drawn from its report: norms, boundaries, exits."""

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from blindspot.audit.report import VISIBLE, Depth, Estimate, Report
from blindspot.publish import style

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
#: What is drawn where a KL is 0 or lost in rounding.
FLOOR = 1e-12


def draw(report: Report, out: Path) -> dict[str, str]:
    """Write each figure as PDF and PNG; its SVG by name, to be put into a page."""
    found = {}
    for name, make in (("norms", norms), ("boundaries", boundaries), ("exits", exits)):
        with style.theme():
            figure = make(report)
            figure.draw_without_rendering()  # laid out once, not anew for each format
            figure.set_layout_engine("none")
            style.save(figure, out, name)
            buffer = io.StringIO()
            figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
        text = buffer.getvalue()
        found[name] = text[text.index("<svg") :]
    return found


def _figure(panels: int) -> tuple[Figure, Sequence[Axes]]:
    figure = Figure(figsize=(style.WIDTH, 2.4), layout="constrained")
    return figure, figure.subplots(1, panels, squeeze=False)[0]


def _line(
    axes: Axes, depths: Sequence[Depth], of: Callable[[Depth], Estimate | None], label: str = ""
) -> None:
    """A quantity by loop, with its interval."""
    shown = [(d.k, e) for d in depths if (e := of(d)) is not None and e.value is not None]
    ks = [k for k, _ in shown]
    values = np.array([e.value for _, e in shown], dtype=float)
    low = np.array([e.value if e.low is None else e.low for _, e in shown], dtype=float)
    high = np.array([e.value if e.high is None else e.high for _, e in shown], dtype=float)
    errors = np.stack([values - low, high - values])
    axes.errorbar(ks, values, errors, marker="o", color=COLORS[0], capsize=2, label=label or None)


def _by_loop(axes: Axes, report: Report, title: str, unit: str) -> None:
    axes.set_title(title)
    axes.set_xlabel("loop")
    axes.set_ylabel(unit)
    last = report.depths[-1].k
    axes.set_xticks(range(0, last + 1, max(1, round(last / 8))))
    if last > report.model.loops:
        axes.axvspan(report.model.loops + 0.5, last + 0.5, color="#F2F2F2", zorder=0)
        axes.set_xlim(right=last + 0.5)


def norms(report: Report) -> Figure:
    """Norm, angle to the state before, and effective number of directions, by loop."""
    figure, (left, middle, right) = _figure(3)
    depths = report.depths
    _line(left, depths, lambda d: d.norm, "mean")
    tails = [(d.k, d.norm_p99) for d in depths if d.norm_p99 is not None]
    left.plot(*zip(*tails, strict=True), linestyle=":", color=COLORS[1], label="p99")
    means = [d.norm.value for d in depths if d.norm.value]
    if means and max(means) > 10 * min(means):
        left.set_yscale("log")
    left.legend()
    _by_loop(left, report, "Norm of the state", "|H|")
    _line(middle, depths, lambda d: d.angle)
    _by_loop(middle, report, "Angle to the state before", "radians")
    middle.set_ylim(bottom=0)
    _line(right, depths, lambda d: d.rank)
    _by_loop(right, report, "Directions of the tokens", "effective number")
    right.set_ylim(bottom=0)
    return figure


def boundaries(report: Report) -> Figure:
    """What a factor on the state does to its reading, to the next loop, and at the end."""
    figure, (left, middle, right) = _figure(3)
    for boundary, color in zip(report.boundaries, _colors(len(report.boundaries)), strict=True):
        label = f"loop {boundary.k}"
        factors = sorted(boundary.factors, key=lambda f: f.factor)
        x = [f.factor for f in factors]
        look: dict[str, Any] = {"marker": "o", "color": color, "label": label}
        left.plot(x, [max(f.kl.value or 0.0, FLOOR) for f in factors], **look)
        kept = [2 ** ((f.exponent.value or 0.0) * np.log2(f.factor)) for f in factors]
        middle.plot(x, kept, **look)
        right.plot(x, [np.nan if (v := f.end.value) is None else v for f in factors], **look)
    ends = [min(x), max(x)]
    left.axhline(VISIBLE, linestyle="--", color="#444444", linewidth=0.8)
    left.set_yscale("log")
    middle.plot(ends, ends, linestyle="--", color="#444444", linewidth=0.8)
    middle.axhline(1, linestyle=":", color="#444444", linewidth=0.8)
    middle.set_yscale("log", base=2)
    for axes, title, unit in (
        (left, "Seen where it is read", "median KL, nats"),
        (middle, "Left after the next loop", "|F(aH)| / |F(H)|"),
        (right, "Loss at the end", "change, nats"),
    ):
        axes.set_xscale("log", base=2)
        axes.set_title(title)
        axes.set_xlabel("factor a on the state")
        axes.set_ylabel(unit)
    right.legend(ncols=1 if len(report.boundaries) <= 4 else 2, fontsize=6.5, handlelength=1.5)
    return figure


def _colors(n: int) -> list[Any]:
    """Colours that are told apart; by depth from dark to light, where they are many."""
    return list(COLORS[:n]) if n <= 4 else list(mpl.colormaps["viridis"](np.linspace(0, 0.9, n)))


def exits(report: Report) -> Figure:
    """Cross-entropy at each exit, and how far the prediction moves with each loop."""
    figure, (left, middle, right) = _figure(3)
    _line(left, report.depths, lambda d: d.ce)
    _by_loop(left, report, "Loss by exit", "cross-entropy, nats")
    _line(middle, report.depths, lambda d: d.shift)
    _by_loop(middle, report, "Prediction by exit", "KL to exit before, nats")
    middle.set_ylim(bottom=0)
    _line(right, report.depths, lambda d: d.clamp)
    right.axhline(0, color="#444444", linewidth=0.8)
    _by_loop(right, report, "Norm held at loop 1's", "change of the loss, nats")
    right.set_xlim(1.5, report.model.loops + 0.5)
    return figure
