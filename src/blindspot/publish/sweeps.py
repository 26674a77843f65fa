"""What a sweep's table and figure show: the last loop of a run against the value that was swept.

The table is made in tables/sweep.py, the figure in figures/sweep.py.
"""

from typing import Any

import pandas as pd

from blindspot.collect.collected import Collected
from blindspot.errors import BlindspotError
from blindspot.publish.catalogue import SWEEP
from blindspot.publish.typeset import ABSENT

#: What is shown: its heading, and whether it is averaged, and drawn, as logarithms.
VALUES = {
    "ce": ("CE at the last loop", False),
    "norm": ("norm of the last state", True),
    "gain": ("CE gained by loops 2 to K", False),
    "angle": ("angle of the last loop", True),
}
LINEAR = [name for name, (_, log) in VALUES.items() if not log]
LOG = [name for name, (_, log) in VALUES.items() if log]


def points(c: Collected, sweep: str) -> list[dict[str, Any]]:
    """The cells of a sweep: `cell`, `of` (the swept cell), `values` by key, and `own`: whether it
    is the swept cell itself."""
    found: dict[str, list[dict[str, Any]]] = c.study.get("sweeps", {})
    if sweep not in found:
        raise BlindspotError(
            f"no sweep {sweep!r} in this study; it has {', '.join(found) or 'none'}"
        )
    return found[sweep]


def measured(c: Collected) -> pd.DataFrame:
    """By run what `VALUES` names: CE in nats and L2 norm at the last loop, CE_1 - CE_K in nats,
    angle from H_(K-1) to H_K in radians, all on the validation split."""
    index = ["size", "cell", "seed"]
    e, n, u = c.exits(), c.frame("norms").query("split == 'validation'"), c.frame("updates")
    ce = c.last(e).set_index(index)["ce"]
    frame = pd.DataFrame(
        {
            "ce": ce,
            "norm": c.last(n).set_index(index)["l2_mean"],
            "gain": e[e["k"] == 1].set_index(index)["ce"] - ce,
            "angle": c.last(u, before=1).set_index(index)["angle_mean"],
        }
    )
    return frame.reset_index()


def shown_value(value: Any) -> str:
    """A swept value for reading."""
    return f"{value:g}" if isinstance(value, float) else str(value) if value != "" else ABSENT


def named(name: str) -> str | None:
    """The sweep that a table or figure of this name is of, if it is of one."""
    return name.removeprefix(SWEEP) if name.startswith(SWEEP) else None
