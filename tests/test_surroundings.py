"""What a user's environment holds for other programs changes nothing here."""

import os
import subprocess
import sys

import pytest

from blindspot import provenance


def run(*words, **more):
    return subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, env=os.environ | more
    )


def test_a_table_in_a_pipe_is_wide_whatever_forces_colour():
    """FORCE_COLOR makes rich take a pipe for a terminal of 80 columns, which cuts hashes."""
    code = "from blindspot.plan.ask import console; console().print('x' * 150)"
    for more in ({}, {"FORCE_COLOR": "1"}, {"COLUMNS": "80", "FORCE_COLOR": "1"}):
        assert run("-c", code, **more).stdout == "x" * 150 + "\n"


def test_a_notebooks_backend_breaks_no_figure(tmp_path):
    words = ("figure", "none", "--collected", str(tmp_path), "--out", str(tmp_path))
    code = "from blindspot.cli import main; main()"
    done = run("-c", code, *words, MPLBACKEND="module://no_such.backend")
    assert done.stderr.startswith("error: no figure 'none'; there are "), done.stderr


@pytest.mark.parametrize(
    ("visible", "shown"), [(None, True), ("0", True), ("", False), ("-1", False), (" -1,0", False)]
)
def test_a_gpu_that_is_hidden_is_none(monkeypatch, visible, shown):
    """As CUDA reads its variable: `auto` is then the CPU, and torch would find nothing else."""
    monkeypatch.setattr(provenance.Path, "exists", lambda path: str(path) == "/dev/nvidia0")
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert provenance.has_gpu() is shown
    assert provenance.kind("auto") == ("cuda" if shown else "cpu")
