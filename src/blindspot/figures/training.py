"""Figures of the training itself."""

import pandas as pd

from blindspot.collected import Collected
from blindspot.figures.panels import Panels, lines, panels, step_axis
from blindspot.stats import over_seeds

#: The first part of training, where all curves fall steeply, may leave the panel by its top.
SETTLED = 0.1


def training_curves(collected: Collected) -> Panels:
    """Validation CE at the last loop by optimizer step."""
    t = collected.frame("trajectory")
    t = t[(t["split"] == "validation") & (t["k"] == collected.loops) & (t["step"] > 0)]
    mean = over_seeds(t, ["size", "cell", "step"], ["ce"])
    figure = panels(collected, collected.sizes, [2.4])
    for ax, size in zip(figure.axes[0], collected.sizes, strict=True):
        part = mean[mean["size"] == size]
        ax.set_ylim(settled_limits(part))
        held = ax.get_ylim()
        lines(ax, part, "step", "ce", figure.style)
        ax.set_ylim(held)
        step_axis(ax, part["step"])
        ax.set_ylabel("")
    figure.axes[0, 0].set_ylabel(f"validation CE at loop {collected.loops} (nats/token)")
    figure.legend(mean["cell"])
    return figure


def settled_limits(part: pd.DataFrame) -> tuple[float, float]:
    """Limits of CE that show the end of training and most of the way there."""
    late = part[part["step"] >= SETTLED * part["step"].max()]
    low, high = late["ce"].min(), late["ce"].max()
    margin = 0.05 * (high - low) or 0.1
    return float(low - margin), float(high + margin)
