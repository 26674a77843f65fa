"""The audit on trained models of the study's cells: the verdicts that each cell is known for."""

import pytest

from blindspot.audit import Settings
from blindspot.audit.examine import audit
from blindspot.audit.options import Options
from blindspot.audit.sources import find
from blindspot.training.train import train
from training import typed_job

pytestmark = pytest.mark.extra

SETTINGS = Settings(tokens=240, length=12, powers=(-1, 1), beyond=2)
CELLS = (
    "perloop-rms",
    "perloop-rms-penalty",
    "perloop-raw",
    "perloop-finalnorm",
    "perloop-rms-interloop",
)


@pytest.fixture(scope="module")
def reports(tokens, tmp_path_factory):
    """An audit of each cell, trained until what holds its norm has shown."""
    where = tmp_path_factory.mktemp("cells")
    (where / "work" / "tokens").mkdir(parents=True)
    (where / "work" / "tokens" / "toy").symlink_to(tokens[0])
    options = Options(results=where / "results", work=where / "work", device="cpu")
    found = {}
    for cell in CELLS:
        job = typed_job(tokens, where, cell, dropout=0.0, steps=300, learning_rate=7e-3)
        job.out = where / "results" / "toy" / "runs" / job.name
        train(job)
        subject = find(job.name, options)
        found[cell] = audit(subject.model, subject.stream, SETTINGS)[0]
    return found


def test_verdicts(reports):
    """perloop-rms is blind; the penalty leaves it blind, and holds it; the others are not blind."""
    blind = {cell: report.verdict.blind for cell, report in reports.items()}
    assert blind == {
        "perloop-rms": "yes",
        "perloop-rms-penalty": "yes",
        "perloop-raw": "no",
        "perloop-finalnorm": "no",
        "perloop-rms-interloop": "no",
    }
    assert not reports["perloop-rms-penalty"].verdict.drifting


def test_why_not(reports):
    for cell in ("perloop-raw", "perloop-finalnorm"):
        assert reports[cell].verdict.visible_at == [1, 2]
    for boundary in reports["perloop-rms-interloop"].boundaries:
        assert (boundary.visible, boundary.carried) == (False, "no")


def test_a_penalty_holds_the_norm(reports):
    norm = {cell: report.depths[3].norm.value for cell, report in reports.items()}
    print({cell: round(value, 1) for cell, value in norm.items()})
    assert norm["perloop-rms"] > 2 * norm["perloop-rms-penalty"]
