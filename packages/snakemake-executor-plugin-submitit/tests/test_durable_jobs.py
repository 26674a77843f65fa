"""Partitions by limits, what jobs use, what is kept of them: no cluster needed."""

import csv
import os
import resource
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

from durable_jobs import ClusterError, partitions, records, task, usage
from snakemake_executor_plugin_submitit import Executor, ExecutorSettings
from snakemake_executor_plugin_submitit.translate import sbatch_options

PARTITIONS = """
partitions:
  short: {max_runtime: 4h, max_mem_mb: 64000, max_threads: 8}
  long: {max_runtime: 10d}
  gpu: {max_runtime: 2d, max_gpu: 8, available_gpu_models: [a100, h100]}
"""


@pytest.fixture
def limits(tmp_path: Path) -> partitions.Partitions:
    (tmp_path / "partitions.yaml").write_text(PARTITIONS)
    return partitions.read(tmp_path / "partitions.yaml")


@pytest.mark.parametrize(
    ("threads", "resources", "expected"),
    [
        (1, {}, "short"),
        (1, {"runtime": 240, "mem_mb": 64000}, "short"),
        (1, {"runtime": 241}, "long"),
        (9, {"runtime": 5}, "long"),
        (1, {"mem_mb": 64001}, "long"),
        (1, {"gpu": 8}, "gpu"),
        (1, {"gpu": 1, "gpu_model": "h100"}, "gpu"),
    ],
)
def test_the_first_partition_that_fits(limits, threads, resources, expected) -> None:
    assert partitions.choose(limits, threads, resources) == expected


def test_what_fits_nowhere_is_told_why(limits) -> None:
    with pytest.raises(ClusterError) as told:
        partitions.choose(limits, 1, {"gpu": 1, "gpu_model": "v100"})
    assert "short (gpu=1, max_gpu is 0)" in str(told.value)
    assert "gpu (gpu_model=v100, available_gpu_models is a100, h100)" in str(told.value)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("partitions: {a: {max_rumtime: 5}}", "unknown limit max_rumtime; known are max_runtime"),
        ("partitions: {a: {max_runtime: soon}}", "max_runtime 'soon'; write minutes, 4h or 2d"),
        ("partitions: {a: {max_mem_mb: 4G}}", "max_mem_mb '4G' is no whole number"),
        ("a: {}", "`partitions:` with limits by name is missing"),
        ("[", "this is no YAML"),
    ],
)
def test_a_wrong_file_is_named_with_its_fault(tmp_path, text, reason) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(text)
    with pytest.raises(ClusterError) as told:
        partitions.read(path)
    assert str(path) in str(told.value) and reason in str(told.value)
    with pytest.raises(ClusterError, match="No such file"):
        partitions.read(tmp_path / "none.yaml")


def test_a_job_looks_at_its_processes(tmp_path, monkeypatch) -> None:
    """100 MB in a process and in its child are 200; a GPU's load is asked of nvidia-smi."""
    (tmp_path / "nvidia-smi").write_text('#!/bin/sh\necho "$@" > asked\nprintf "40\\n60\\n"\n')
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    code = (
        "import os, pathlib, time\nheld = b'x' * 100_000_000\n"
        "pid = os.fork()\nheld = held[:-1]\n"
        "pathlib.Path(f'ready{bool(pid)}').touch()\ntime.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    try:
        while not all((tmp_path / f"ready{one}").exists() for one in (True, False)):
            time.sleep(0.05)
        meter = usage.Meter(process.pid, {"CUDA_VISIBLE_DEVICES": "0,1"})
        meter.look()
        assert 190e6 < meter.memory < 400e6
        assert meter.busy == [50.0]
        assert "--id=0,1" in (tmp_path / "asked").read_text()
    finally:
        os.killpg(process.pid, 9)
        process.wait()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    for _ in range(2):
        meter.save(tmp_path / "0.usage.json")
    kept = usage.read(tmp_path / "0.usage.json")
    assert kept["attempts"] == 2 and kept["busy"] == [50.0, 50.0]
    assert kept["memory_mb"] >= meter.memory / 2**20
    assert kept["cpu_seconds"] >= before.ru_utime


def test_the_report_says_how_much_was_used(tmp_path) -> None:
    used = {"attempts": 2, "seconds": 600.0, "longest": 360.0, "cpu_seconds": 900.0,
            "memory_mb": 500.0, "busy": [80.0, 90.0]}  # fmt: skip
    asked = {"mem_mb": 1000, "runtime": 60, "gpu": 1}
    jobs = [usage.Job(f"train-{n}", asked | {"mem_mb": 1000 * n}, 2, used) for n in (1, 2)]
    jobs.append(usage.Job("sum", {}, 1, used | {"busy": []}))
    jobs.append(usage.Job("train-lost", asked, 2, {}))
    lines = usage.report(jobs, tmp_path / "made/report.csv")
    assert lines == [
        "train (2 jobs) used of what it asked for: memory 50% at most, time 10% at most, "
        "CPUs 75%, GPUs 85%",
        "sum (1 jobs) used of what it asked for: CPUs 150%",
    ]
    rows = list(csv.DictReader((tmp_path / "made/report.csv").open()))
    assert [row["job"] for row in rows] == ["train-1", "train-2", "sum"]
    assert (rows[0]["mem_mb_used"], rows[0]["minutes_longest"]) == ("500", "6.0")
    assert (rows[0]["cpus_used"], rows[0]["gpu_percent"], rows[2]["mem_mb_asked"]) == (
        "1.5", "85", "")  # fmt: skip


@pytest.mark.parametrize(
    ("cgroup", "file", "text"),
    [
        ("0::/slurm/job_1/step", "slurm/job_1/step/memory.events", "oom 3\noom_kill 2\n"),
        ("5:cpu:/x\n4:memory:/slurm/job_1", "memory/slurm/job_1/memory.oom_control",
         "under_oom 0\noom_kill 2\n"),
        ("0::/nowhere", "other", ""),
    ],
)  # fmt: skip
def test_kills_of_the_kernel_are_counted(tmp_path, cgroup, file, text) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "self/cgroup").write_text(f"{cgroup}\n")
    path = tmp_path / "fs" / file
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert task.oom_kills(tmp_path / "self", tmp_path / "fs") == (2 if text else 0)


def test_old_batches_go_unless_somebody_waits_for_them(tmp_path) -> None:
    root = tmp_path / "submitit"
    (root / "jobs").mkdir(parents=True)
    old, awaited, fresh = (root / f"2026010{n}-120000-abcd" for n in (1, 2, 3))
    (root / "mine").mkdir()
    for folder in (old, awaited, fresh, root / "mine"):
        folder.mkdir(exist_ok=True)
        (folder / "5_0_log.out").touch()
        if folder != fresh:
            for path in (folder / "5_0_log.out", folder):
                os.utime(path, (0, time.time() - 3 * 86400))
    records.Record(root / "jobs/name.hash", awaited, 0).save()
    records.forget(root, 4)
    assert old.exists()
    records.forget(root, 2)
    assert not old.exists()
    assert awaited.exists() and fresh.exists() and (root / "mine").exists()


def bare(tmp_path: Path, **settings: object) -> Executor:
    """An executor as after its start, without a workflow."""
    made = object.__new__(Executor)
    made.settings = ExecutorSettings(**settings)
    made.options, made.partitions = sbatch_options, {}
    made.avoided, made.ended, made.live = ["n9", "auto"], [], {}
    made.short = Counter()
    made.logger = SimpleNamespace(info=lambda _: None)
    made.report_job_error = lambda *_, **__: None
    return made


def test_after_a_failure_more_memory_or_other_nodes(tmp_path) -> None:
    """Twice out of memory: four times as much. Failed otherwise: not on those nodes again."""
    executor = bare(tmp_path)
    job = SimpleNamespace(
        resources={"mem_mb": 1000},
        threads=1,
        is_group=lambda: False,
        rule=SimpleNamespace(name="r"),
    )
    record = records.Record(tmp_path / "name.hash", tmp_path, 0)
    record.set_job_id("5")
    record.log.write_text(
        "== attempt 1 of a: n2, 2026-01-01 12:00:00, 1 CPUs, GPUs []\n"
        "== attempt 2 of a: n[3-4], 2026-01-01 13:00:00, 1 CPUs, GPUs []\n"
    )
    assert executor._asked(job, record)["mem"] == "1000M"
    for failure in ("out of memory; ask for more", "out of memory", "exit status 1"):
        executor.live[record.link] = record
        executor._end(SimpleNamespace(job=job), record, failure)
    given = executor._asked(job, record)
    assert given["mem"] == "4000M"
    assert given["exclude"] == "n9,n[3-4]"
    assert [one.name for _, one in executor.ended] == ["name"] * 3
