"""Fixtures of all tests; what they import from each other is in toys.py."""

import sys

import pytest

#: Modules that run Snakemake or other processes, or train for longer than a second.
SLOW = {
    "test_controller", "test_engine", "test_executor_local", "test_executor_queue",
    "test_gpu_benchmark", "test_gpus", "test_hub", "test_invocation", "test_module",
    "test_parallel", "test_showcase", "test_sourcecode", "test_train", "test_train_compile",
    "test_train_faults", "test_train_kills", "test_workflow", "test_workflow_controllers",
    "test_workflow_device",
    "test_workflow_parts", "test_workflow_publish", "test_workflow_reruns", "test_workflow_rows",
}  # fmt: skip


def pytest_collection_modifyitems(items):
    """Mark what `make test-fast` leaves out."""
    for item in items:
        if item.path.stem in SLOW:
            item.add_marker(pytest.mark.slow)


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


@pytest.fixture(autouse=True)
def gradual_underflow():
    """A training sets numbers below 1e-38 to 0 for its whole process; other tests start without."""
    yield
    if "torch" in sys.modules:
        sys.modules["torch"].set_flush_denormal(False)
