"""`device: auto` through the profiles: jobs that are sent off ask for GPUs, and never fall back."""

import re

import pytest

from studies import STUDY, lay_out, load, snakemake

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


def test_a_job_gets_the_gpu_and_is_told_to_use_it(auto):
    """A GPU in name only: the job is given it, and torch's refusal shows that it was told to."""
    target = f"results/tiny/throughput/nano-{load(auto).throughput_hash('nano')}.csv"
    gpu = {"CUDA_VISIBLE_DEVICES": "0"}
    done = snakemake(auto, *WORKSTATION, target, *STUDY, check=False, **gpu)
    assert done.returncode != 0
    (log,) = (auto / "work/logs/throughput").glob("nano-*.log")
    assert "device: cuda: this machine has no GPU that torch can use" in log.read_text()
