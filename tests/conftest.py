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


@pytest.fixture(scope="module")
def tokens(tmp_path_factory):
    """Token files of a toy text, and the identity of their data."""
    from training import toy_tokens

    return toy_tokens(tmp_path_factory.mktemp("data"))


@pytest.fixture
def job(tokens, tmp_path):
    """Makes toy trainings on `tokens`."""
    from training import toy_job

    def make(cell="perloop-rms", where="run", **changes):
        return toy_job(tokens, tmp_path / where, cell, **changes)

    return make
