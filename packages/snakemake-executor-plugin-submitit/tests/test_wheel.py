"""The wheel, in an empty environment; it comes with Snakemake from the package index."""

import os
import subprocess
from pathlib import Path

import foreign
import pytest


@pytest.mark.extra
def test_a_strangers_workflow_on_one_machine(tmp_path: Path) -> None:
    programs = foreign.environment(tmp_path)
    here = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    said = foreign.run(tmp_path / "study", programs, "local", here)
    assert "write-1 submitted as local_0" in said
    alone = subprocess.run([programs / "python", "-c", "import blindspot"], capture_output=True)
    assert alone.returncode, "the environment has nothing of the study that this came from"
