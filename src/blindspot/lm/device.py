"""The device and the precision of a computation."""

from contextlib import AbstractContextManager, nullcontext

import torch

from blindspot.errors import BlindspotError


def resolve(device: str) -> torch.device:
    """The torch device for `auto`, `cpu` or `cuda`; never falls back to the CPU silently."""
    available = torch.cuda.is_available()
    if device == "cuda" and not available:
        raise BlindspotError(
            "device: cuda: this machine has no GPU that torch can use, and the study asks for one. "
            "Run it on a GPU machine (snakemake --profile slurm all), try the small study "
            "(make demo), or set device: cpu in the config if you mean to wait"
        )
    return torch.device("cuda" if device != "cpu" and available else "cpu")


def autocast(precision: str, device: torch.device) -> AbstractContextManager:
    """bf16: matrix products in bfloat16, the residual stream and the losses in float32."""
    if precision == "float32":
        return nullcontext()
    return torch.autocast(device.type, torch.bfloat16)
