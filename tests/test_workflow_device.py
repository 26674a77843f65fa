"""`device: auto` through the profiles: jobs that are sent off ask for GPUs, and never fall back."""

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from blindspot import provenance
from studies import STUDY, TINY, lay_out, load, snakemake

WORKSTATION = ("--profile", "workflow/profiles/workstation")


@pytest.fixture(scope="module")
def auto(tmp_path_factory):
    """The tiny study with `device: auto`; nothing is made."""
    return lay_out(tmp_path_factory.mktemp("auto"), device="auto")


@pytest.mark.parametrize(
    ("profile", "told"), [((), "auto"), (("--profile", "slurm"), "cuda"), (WORKSTATION, "cuda")]
)
def test_auto_is_a_gpu_where_jobs_are_sent_off(auto, profile, told):
    """Of a dry run: what each kind of job is told. Without a profile a job looks for itself."""
    said = snakemake(auto, "-n", "-p", *profile, "all", *STUDY).stdout
    jobs = re.findall(r"blindspot (train|measure|throughput) .* --device (\w+)", said)
    assert {verb for verb, _ in jobs} == {"train", "measure", "throughput"}
    assert {device for _, device in jobs} == {told}


def test_a_workstation_without_a_gpu_is_refused_at_the_start(auto):
    done = snakemake(auto, *WORKSTATION, "all", *STUDY, check=False, CUDA_VISIBLE_DEVICES="")
    assert done.returncode != 0
    assert "study tiny is for GPUs (device: auto, jobs sent off), 13 jobs" in done.stdout
    assert not (auto / "work/runs").exists() and not (auto / "work/corpora").exists()


def test_a_tracker_that_is_not_installed_is_refused_at_the_start(tmp_path):
    where = lay_out(tmp_path, execution={"tracking": "wandb"})
    if find_spec("wandb"):
        pytest.skip("wandb is installed here")
    done = snakemake(where, "all", *STUDY, check=False)
    assert done.returncode != 0
    assert "study tiny: execution.tracking is wandb, which is not installed" in done.stdout
    assert "-m pip install wandb" in done.stdout and not (where / "work/corpora").exists()


@pytest.mark.parametrize(
    ("cpuinfo", "has"),
    [
        ("processor\t: 0\nflags\t\t: fpu avx2 avx512f\n", False),
        ("processor\t: 0\nflags\t\t: fpu avx512f avx512_bf16 amx_bf16\n", True),
        ("processor\t: 0\nFeatures\t: fp asimd bf16 i8mm\n", True),
        ("processor\t: 0\nFeatures\t: fp asimd\n", False),
        ("cpu\t: POWER9\n", None),
    ],
)
def test_bf16_is_known_from_the_processors_flags(monkeypatch, tmp_path, cpuinfo, has):
    (tmp_path / "cpuinfo").write_text(cpuinfo)
    monkeypatch.setattr(provenance, "Path", lambda name: tmp_path / Path(name).name)
    assert provenance.has_bf16() is has


def test_bf16_of_a_processor_without_it_is_said_before_the_first_job(tmp_path):
    """Once, by the process that was typed; the corpus is not there, so no job does anything."""
    where = lay_out(tmp_path, training=TINY["training"] | {"precision": "bf16"})
    for split in ("train", "validation", "test"):
        (where / f"{split}.txt").write_text(" ")  # refused by the first job
    said = snakemake(where, "all", *STUDY, check=False).stdout
    warned = said.count("training.precision is bf16, which this processor")
    assert warned == (provenance.has_bf16() is False)
    # Not of float32, nor of a dry run.
    where = lay_out(tmp_path / "other")
    assert "training.precision is bf16" not in snakemake(where, "-n", "all", *STUDY).stdout


def test_a_job_gets_the_gpu_and_is_told_to_use_it(auto):
    """A GPU in name only: the job is given it, and torch's refusal shows that it was told to."""
    target = f"results/tiny/throughput/nano-{load(auto).throughput_hash('nano')}.csv"
    gpu = {"CUDA_VISIBLE_DEVICES": "0"}
    done = snakemake(auto, *WORKSTATION, target, *STUDY, check=False, **gpu)
    assert done.returncode != 0
    (log,) = (auto / "work/logs/throughput").glob("nano-*.log")
    assert "device: cuda: this machine has no GPU that torch can use" in log.read_text()
