"""What the rules take from Snakemake's insides, asked of a real Snakemake of the version named."""

import json
import subprocess
import sys

import pytest
import snakemake

from blindspot.workflow import invocation

SNAKEFILE = """
import json
from blindspot.workflow.invocation import Invocation

call = Invocation(workflow)
OVER = str(call.source("over.yaml"))

def write(name, **said):
    with open(name, "w") as file:
        json.dump(said, file)

def planned(wildcards):
    write(
        f"planned-{call.is_main}.json",
        source=OVER, module=call.is_module, target=call.named("all"),
        snakefile=str(call.snakefile), config=call.config,
        configfiles=[str(path) for path in call.configfiles], cores=call.cores,
        targets=sorted(call.targets), runs=call.runs, is_dry=call.is_dry,
        sends_jobs=call.sends_jobs, latency=call.latency_wait if call.runs else None,
        cluster=call.executor_setting("cluster"), gpus=call.resources_of("good")["gpu"].raw,
    )
    return []

rule all:
    default_target: True
    input:
        planned,
        "a.txt",

rule good:
    output:
        "a.txt",
    resources:
        gpu=2,
    shell:
        "touch {output}"

rule bad:
    input:
        planned,
    output:
        "b.txt",
    shell:
        "exit 3"

onstart:
    write("ahead.json", rules=[job.rule.name for job in call.ahead])

onerror:
    write("failed.json", rules=[job.rule.name for job in call.failed])
"""


@pytest.fixture
def ask(tmp_path):
    """Calls Snakemake and gives back what was known while it planned."""
    (tmp_path / "Snakefile").write_text(SNAKEFILE)
    (tmp_path / "over.yaml").write_text("x: 1\n")

    def run(*arguments, code=0):
        command = [sys.executable, "-m", "snakemake", *arguments]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
        assert done.returncode == code, done.stdout + done.stderr
        return json.loads((tmp_path / "planned-True.json").read_text())

    return run


def test_this_is_the_version_that_was_tried():
    """What is asked here is no public interface of Snakemake: after an update, run this file, look
    through the release notes for `workflow`, and write down the new version."""
    assert snakemake.__version__ == invocation.TRIED


def test_a_run_knows_its_command_line_its_plan_and_its_failures(ask, tmp_path):
    words = ("--configfile", "over.yaml", "--config", "study=2", "cell={d: 3}")
    known = ask("--cores", "3", "all", "b.txt", "--keep-going", *words, code=1)
    assert known == {
        "source": "over.yaml",
        "module": False,
        "target": "all",
        "snakefile": "Snakefile",
        "config": ["study=2", "cell={d: 3}"],
        "configfiles": ["over.yaml"],
        "cores": 3,
        "targets": ["all", "b.txt"],
        "runs": True,
        "is_dry": False,
        "sends_jobs": False,
        "latency": 5.0,
        "cluster": None,
        "gpus": 2,
    }
    ahead = json.loads((tmp_path / "ahead.json").read_text())["rules"]
    assert sorted(ahead) == ["all", "bad", "good"]
    assert json.loads((tmp_path / "failed.json").read_text())["rules"] == ["bad"]


def test_looks_are_told_from_runs_and_jobs_that_stay_from_jobs_that_leave(ask, tmp_path):
    dry = ask("-n")
    assert (dry["runs"], dry["is_dry"], dry["sends_jobs"], dry["targets"]) == (
        True,
        True,
        False,
        [],
    )
    assert dry["cores"] == 1 and not (tmp_path / "ahead.json").exists()
    assert ask("-n", "--jobs", "4")["sends_jobs"]
    assert not ask("--summary", "--", "all")["runs"]
    local = ("--executor", "submitit", "--submitit-cluster", "local")
    sent = ask(*local, "--jobs", "1", "b.txt", code=1)
    assert (sent["sends_jobs"], sent["cluster"], sent["is_dry"]) == (True, "local", False)
    # The job's own Snakemake, in its own process.
    assert json.loads((tmp_path / "planned-False.json").read_text())["targets"] == []
