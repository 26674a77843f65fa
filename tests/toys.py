"""Small things that tests share: toy specifications and the plain cells of the study."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parent.parent

#: Real WikiText in the hub's layout, where there is any.
WIKITEXT = Path(
    os.environ.get("BLINDSPOT_TEST_DATA", ROOT.parent / "shared/data/hf/Salesforce/wikitext")
)

CELLS = {
    "terminal-rms": {"loss": "terminal", "readout": "rms"},
    "terminal-raw": {"loss": "terminal", "readout": "raw"},
    "perloop-rms": {"loss": "per-loop", "readout": "rms"},
    "perloop-raw": {"loss": "per-loop", "readout": "raw"},
    "perloop-finalnorm": {"loss": "per-loop", "readout": "final-only-rms"},
    "terminal-rms-penalty": {"loss": "terminal", "readout": "rms", "penalty": {"weight": 0.01}},
    "perloop-rms-penalty": {"loss": "per-loop", "readout": "rms", "penalty": {"weight": 0.01}},
    "perloop-rms-interloop": {"loss": "per-loop", "readout": "rms", "interloop": "rms"},
    "perloop-raw-interloop-gain": {"loss": "per-loop", "readout": "raw", "interloop": "rms-gain"},
    "perloop-power": {"loss": "per-loop", "readout": "power", "alpha": 0.5},
    "perloop-layernorm-sum": {
        "loss": "per-loop",
        "readout": "layernorm",
        "penalty": {"kind": "sum-square", "weight": 0.01},
    },
}


def toy_model(cell: str = "perloop-rms", **changes):
    """ModelSpec of a toy size for a cell."""
    from blindspot.config.spec import ModelSpec

    values = {
        "d_model": 16,
        "layers": 2,
        "heads": 2,
        "loops": 3,
        "vocab_size": 37,
        "context": 12,
        "dropout": {"rate": 0.0},
        "readout": CELLS[cell]["readout"],
        "interloop": CELLS[cell].get("interloop", "none"),
        "alpha": CELLS[cell].get("alpha"),
    }
    return ModelSpec.model_validate(values | changes)


def toy_objective(cell: str):
    from blindspot.config.spec import Objective

    return Objective.model_validate(
        {"loss": CELLS[cell]["loss"], "penalty": CELLS[cell].get("penalty")}
    )


def times_a_target(tokens, windows):
    """How many windows have the id at each place of a stream as a target, by trying every start."""
    seen = np.zeros(tokens, dtype=int)
    for start in range(0, tokens - windows.length, windows.stride):
        seen[start + 1 : start + windows.length + 1] += 1
    return seen
