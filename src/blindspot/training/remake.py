"""Runs that are made anew although they are finished (`reuse: false`).

The workflow leaves a mark in a run's state folder before its first job. The trainer that meets it
drops all earlier state and the mark, so it starts from nothing once; when it is interrupted and
taken up again, the mark is gone and it resumes.
"""

import shutil
from pathlib import Path

from blindspot.config.runfiles import TRACKED
from blindspot.files import write_text
from blindspot.provenance import now

MARK = "remake"


def ask(state: Path) -> None:
    """Mark the state folder of a run: its next training starts from nothing."""
    write_text(state / MARK, f"asked for at {now()}\n")


def forget(state: Path) -> None:
    """Take back a mark that an interrupted start has left: it would drop weights much later."""
    (state / MARK).unlink(missing_ok=True)


def clear_if_asked(state: Path, out: Path) -> bool:
    """Drop a marked run's checkpoints, weights and measurements; whether it was marked.

    Call this while the run's lock is held.
    """
    mark = state / MARK
    if not mark.exists():
        return False
    for path in state.glob("*.safetensors"):
        path.unlink()
    shutil.rmtree(state / "tensorboard", ignore_errors=True)
    (state / TRACKED).unlink(missing_ok=True)
    # They describe the weights that are gone.
    for folder in out.glob("measure*"):
        shutil.rmtree(folder)
    mark.unlink()
    return True
