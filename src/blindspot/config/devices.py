"""Peak rates of GPUs, from their makers' data sheets."""

import re

#: Dense bf16 peak in FLOP/s by a word of the device's name; the first that fits counts.
PEAKS = {
    "H200 NVL": 836e12,
    "H200": 989e12,
    "GH200": 989e12,
    "H100 NVL": 836e12,
    "H100 PCIe": 756e12,
    "H100": 989e12,
    "A100": 312e12,
    "L40S": 362e12,
}


def peak(device: str) -> float | None:
    """Dense bf16 peak in FLOP/s of a device, by its full name or a key of the table in any case;
    None where the table does not have it: no peak is guessed."""
    for name, rate in PEAKS.items():
        if re.search(rf"\b{name}\b", device, re.IGNORECASE):
            return rate
    return None
