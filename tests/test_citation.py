"""CITATION.cff, CHANGELOG.md and the package speak of the same version."""

import os
import subprocess
from pathlib import Path

import pytest
import yaml

import blindspot
from toys import ROOT


def test_versions_agree():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert cited["version"] == blindspot.__version__
    text = (ROOT / "CHANGELOG.md").read_text()
    assert f"## {blindspot.__version__} (tag `v{blindspot.__version__}`" in text


@pytest.mark.extra
def test_cffconvert_finds_the_citation_valid(tmp_path):
    """In the environment of validators: it needs older packages than ours."""
    if "ROC_PYTHON" not in os.environ:
        pytest.skip("ROC_PYTHON is not set: a Python with cffconvert")
    tool = Path(os.environ["ROC_PYTHON"]).with_name("cffconvert")
    good = subprocess.run([tool, "--validate", "-i", ROOT / "CITATION.cff"], capture_output=True)
    assert good.returncode == 0, good.stdout + good.stderr
    bad = tmp_path / "CITATION.cff"
    bad.write_text((ROOT / "CITATION.cff").read_text().replace("title:", "titel:", 1))
    assert subprocess.run([tool, "--validate", "-i", bad], capture_output=True).returncode != 0
