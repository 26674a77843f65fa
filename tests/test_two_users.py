"""Another user's folder: who it belongs to and what to do, in one message."""

import os
import shutil
import subprocess

import pytest

from blindspot.errors import BlindspotError
from blindspot.workflow.arguments import refuse_unwritable
from studies import command, environment, lay_out

#: A superuser may write anywhere, unless this is taken away.
NO_OVERRIDE = (
    ["setpriv", "--bounding-set=-dac_override,-dac_read_search",
     "--inh-caps=-dac_override,-dac_read_search"]
    if os.geteuid() == 0 else []
)  # fmt: skip
needs_setpriv = pytest.mark.skipif(
    bool(NO_OVERRIDE) and shutil.which("setpriv") is None, reason="needs setpriv for root"
)


@needs_setpriv
@pytest.mark.parametrize("place", [".snakemake", ".snakemake/locks"])
def test_a_folder_of_another_user_is_named_before_snakemake_fails_in_it(tmp_path, place):
    lay_out(tmp_path)
    (tmp_path / place).mkdir(parents=True)
    (tmp_path / place).chmod(0o500)
    try:
        done = subprocess.run(
            [*NO_OVERRIDE, *command("-n", "all", "--cores", "1")],
            cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, check=False,
        )  # fmt: skip
    finally:
        (tmp_path / place).chmod(0o700)
    said = done.stdout + done.stderr
    assert done.returncode == 1 and "Traceback" not in said
    assert f"error: {tmp_path / place}: belongs to " in said and "Use a clone of your own" in said


def test_a_folder_of_ones_own_or_none_yet_is_fine(tmp_path, monkeypatch):
    refuse_unwritable(tmp_path / ".snakemake")
    (tmp_path / ".snakemake/locks").mkdir(parents=True)
    (tmp_path / ".snakemake/log").write_text("")
    refuse_unwritable(tmp_path / ".snakemake")
    # One that no name is known for.
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(BlindspotError, match="you may not write there"):
        refuse_unwritable(tmp_path / ".snakemake")
