"""What of `doctor` needs no Slurm."""

import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from blindspot.config.study import Study
from blindspot.plan import doctor
from blindspot.training import checkpoint
from toys import ROOT


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Study:
    monkeypatch.chdir(tmp_path)
    return Study.load(ROOT / "config.yaml", [ROOT / "studies/demo.yaml"])


def test_no_slurm(study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends with what to do instead, and nothing is sent or left behind."""
    monkeypatch.setenv("PATH", "/nowhere")
    *fine, last = doctor.Doctor(study, {}).examine()
    assert not any(finding.advice for finding in fine)
    assert last.text == "there is no sbatch here"
    assert "login node" in last.advice and "workstation" in last.advice
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_asked_for(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    """A finding with what to change, no trace."""
    monkeypatch.setattr(shutil, "which", lambda _: "sbatch")
    *_, last = doctor.Doctor(study, {"gpu": 6, "nodes": 4}).examine()
    assert last.text == "gpu=6 cannot be shared equally by nodes=4"
    assert "gpus or nodes" in last.advice


def test_space(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """36 bytes a parameter and run: 21 runs each of 44M and 129M parameters ask for 131 GB."""
    monkeypatch.chdir(tmp_path)
    study = Study.load(ROOT / "config.yaml")
    usage = SimpleNamespace(total=2e12, used=1e12, free=1.2e11)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    found = doctor.Doctor(study, {})._space()
    total = 21 * (44e6 + 129e6) * 36 / 1e9
    need = float(found.text.split("up to ")[1].split(" GB")[0])
    assert need == pytest.approx(total, rel=0.02)
    assert "work: /scratch" in found.advice
    assert doctor.TRAINING_BYTES == 4 * 3 * (checkpoint.KEEP + 1)
    usage.free = 1.4e11
    assert not doctor.Doctor(study, {})._space().advice


def test_hub(study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hub that does not answer is said, and no longer once the corpus is there."""
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert not doctor.Doctor(study, {})._hub().advice
    paper = doctor.Doctor(Study.load(ROOT / "config.yaml"), {})
    found = paper._hub()
    assert "http://127.0.0.1:9 does not answer" in found.text
    assert "HTTPS_PROXY" in found.advice
    paper.study.corpus.mkdir(parents=True)
    (paper.study.corpus / "corpus.json").touch()
    assert not paper._hub().advice


@pytest.mark.parametrize(
    ("limit", "minutes"),
    [
        ("4:00:00", 240),
        ("2-00:00:00", 2880),
        ("30:00", 30),
        ("infinite", None),
        ("1-12:30:00", 2190),
    ],
)
def test_minutes(limit: str, minutes: int | None) -> None:
    assert doctor._minutes(limit) == minutes


@pytest.mark.parametrize(
    ("stderr", "reason"),
    [
        (
            "allocation failure: Invalid partition name specified",
            "Invalid partition name specified",
        ),
        ("sbatch: error: Batch job submission failed: x\nsbatch: error: y", "y"),
        ("", "no reason given"),
    ],
)
def test_last(stderr: str, reason: str) -> None:
    assert doctor._last(stderr) == reason


NODE = {"host": "n1", "round_trip": 0.2, "executable": "/e/python", "cpus": 8, "visible": "0,1"}
NODE |= {"error": ""}


@pytest.mark.parametrize(
    ("change", "advice"),
    [
        ({}, ""),
        ({"round_trip": 90.0}, "latency-wait to at least 360"),
        ({"gpus": ["A"]}, "driver"),
        ({"gpus": [], "visible": ""}, "Slurm gave the job no GPU"),
        ({"gpus": [], "torch": "2.13.0+cpu"}, "build for CPUs"),
        ({"python": "3.6.8"}, "shared folder"),
    ],
)
def test_node(study: Study, change: dict[str, object], advice: str) -> None:
    """What the tiny job reports becomes one line each, at most one of them to be changed."""
    python = sys.version.split()[0]
    node = NODE | {"python": python, "torch": "2.13.0+cu130", "gpus": ["A", "A"], "blindspot": "1"}
    findings = list(doctor.Doctor(study, {"gpu": 2})._seen(node | change))
    asked = [finding.advice for finding in findings if finding.advice]
    assert [advice in text for text in asked] == ([True] if advice else [])


def test_quick_job(study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that starts and ends between two looks at the queue was not kept waiting."""

    def ask(command: list[str]) -> SimpleNamespace:
        if command[0] == "squeue":
            (tmp_path / "node.json").write_text(json.dumps(NODE | {"python": ""}))
        answer = {"sbatch": "7\n", "squeue": "PENDING None\n"}.get(command[0], "")
        return SimpleNamespace(stdout=answer, stderr="", returncode=0)

    monkeypatch.setattr(doctor, "_ask", ask)
    first, *_ = doctor.Doctor(study, {})._job(tmp_path)
    assert first.text.startswith("n1 sees")


def test_asked() -> None:
    """Evaluated defaults, then the rule's own values; names that set-resources brings."""

    def value(value: object) -> SimpleNamespace:
        return SimpleNamespace(is_evaluable=lambda: False, value=value)

    def name(raw: str) -> SimpleNamespace:
        return SimpleNamespace(is_evaluable=lambda: True, raw=raw)

    defaults = {"mem_mb": 4000, "slurm_partition": "a", "tmpdir": "/tmp", "_cores": 1}
    rule = {"mem_mb": value(16000), "slurm_partition": name("b"), "disk_mb": name("max(1)")}
    assert doctor.asked(defaults, rule) == {"mem_mb": 16000, "slurm_partition": "b"}
