"""The device and the precision of a computation."""

import ctypes
from contextlib import AbstractContextManager, nullcontext, suppress

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


def keep_memory() -> None:
    """Have this process keep what it frees, for its next step. glibc gives the top of its heap back
    to the system, from which the next step takes it again, page by page; elsewhere, do nothing."""
    trim_threshold, mmap_threshold = -1, -3  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD of malloc.h
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(trim_threshold, -1)
        mallopt(mmap_threshold, 2**30)
