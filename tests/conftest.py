"""Fixtures of all tests; what they import from each other is in toys.py."""

import pytest


@pytest.fixture(autouse=True)
def one_thread():
    """Tests measure values, not speed; two cores are shared by parallel workers."""
    try:
        import torch
    except ImportError:
        return
    torch.set_num_threads(1)
