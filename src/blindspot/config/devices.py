"""Peak rates of GPUs, from their makers' data sheets."""

import re
from typing import NamedTuple


class Peak(NamedTuple):
    """FLOP/s: dense bf16 of the tensor cores, and float32 without them."""

    bf16: float
    float32: float


#: By a word of the device's name; the first that fits counts.
PEAKS = {
    "H200 NVL": Peak(836e12, 60e12),
    "H200": Peak(989e12, 67e12),
    "GH200": Peak(989e12, 67e12),
    "H100 NVL": Peak(836e12, 60e12),
    "H100 PCIe": Peak(756e12, 51e12),
    "H100": Peak(989e12, 67e12),
    "A100": Peak(312e12, 19.5e12),
    "L40S": Peak(362e12, 91.6e12),
}


def known(device: str) -> str | None:
    """The key of the table that stands in a device's name, in any case; None where none does."""
    return next((k for k in PEAKS if re.search(rf"\b{k}\b", device, re.IGNORECASE)), None)


def peak(device: str, precision: str = "bf16") -> float | None:
    """Peak of a device in FLOP/s; None where the table does not have it: no peak is guessed."""
    key = known(device)
    return None if key is None else float(getattr(PEAKS[key], precision))


def listed(device: str) -> str:
    """`device` itself; raises `ValueError` where the table does not have it."""
    if known(device) is None:
        raise ValueError(f"the peak of {device!r} is not known; use one of {', '.join(PEAKS)}")
    return device
