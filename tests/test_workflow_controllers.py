"""Controllers: two studies at once, a second one on the same study, kills, and runs made anew."""

import json
import os
import re
import shutil
import signal
import subprocess
import time

import pytest

from blindspot.config.runfiles import RunFiles
from blindspot.settings import digest
from studies import (
    CORPUS,
    STUDY,
    TINY,
    command,
    copy,
    environment,
    finished,
    lay_out,
    load,
    snakemake,
)
from studies import write as write_config

ONE = {"cells": {"perloop-rms": None}, "grid": {"seeds": [1]}}


def start(where, *arguments):
    """A controller in a process group of its own, which says what it does into a file."""
    log = where / f"said-{time.monotonic_ns()}.log"
    with open(log, "w") as file:
        process = subprocess.Popen(
            command(*arguments),
            cwd=where,
            env=environment(where),
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return process, log


def until(condition, seconds=120.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.1)


def here(where):
    """What names a study in its place."""
    results = where / load(where).results
    return f"{load(where).config.study}-{digest(str(results.resolve()))}"


def steps(where):
    """Steps in the logs of the study's trainings."""
    text = "".join(p.read_text() for p in (where / "work/runs").rglob("train.log"))
    return [int(n) for n in re.findall(r" step (\d+)/", text)]


def test_two_studies_share_tokens_and_a_second_controller_is_refused(tmp_path):
    where = lay_out(tmp_path, **ONE)
    other = {"study": "other", "corpus": load(where).config.corpus.model_dump(mode="json")}
    write_config(where, TINY | other | ONE | {"grid": {"seeds": [2]}})
    (where / "tiny.yaml").rename(where / "other.yaml")
    lay_out(where, **ONE)
    first, log = start(where, "runs", *STUDY)
    second, other_log = start(where, "runs", "--configfile", "other.yaml")
    until(lambda: list((where / "work/locks").glob("tiny-*.lock")))
    refused = snakemake(where, "all", *STUDY, check=False)
    alive = first.poll() is None
    assert first.wait(300) == 0, log.read_text()
    assert second.wait(300) == 0, other_log.read_text()

    assert alive
    assert refused.returncode != 0
    assert f"study tiny is worked on already, by process {first.pid} on " in refused.stdout
    assert "runs --configfile tiny.yaml" in refused.stdout
    assert "type the same command again" in refused.stdout
    assert "Traceback" not in refused.stdout
    for folder in (load(where).corpus, load(where).tokens):
        # Both have planned it; one makes it, the other finds it made.
        said = [path.read_text() for path in (where / "work/logs").rglob(f"{folder.name}-for-*")]
        assert sum(text.count(f"{folder} is there already") for text in said) == 1
    for study, run in (("tiny", "seed1"), ("other", "seed2")):
        found = list((where / "results" / study / "runs").rglob("run.json"))
        assert len(found) == 1 and run in str(found[0])
    # Neither leaves anything that keeps a third one out.
    assert "Nothing to be done" in snakemake(where, "runs", *STUDY).stdout


def test_what_is_made_for_several_studies_is_never_a_reason_to_start_over(tmp_path):
    """The corpus fetched first; then another tokenizer; then tokens lost and a seed added; then
    tokens that could not be made. Each is one plan, carried out once."""
    few = ONE | {"training": TINY["training"] | {"steps": 2}}
    where = lay_out(tmp_path, **few)

    def run(*targets, check=True, **changes):
        write_config(where, TINY | {"corpus": CORPUS} | few | changes)
        done = snakemake(where, *targets, *STUDY, check=check)
        assert done.stdout.count("Building DAG of jobs") == 1
        return done.stdout

    run((load(where).corpus / f"for-{here(where)}").as_posix())
    assert "fetching" not in run("runs")
    other = {"tokenizer": {"kind": "bpe", "vocab_size": 290}}
    said = run("runs", **other)
    assert "tokenizing" in said and "fetching" not in said
    shutil.rmtree(where / load(where).tokens)
    said = run("runs", **other, grid={"seeds": [1, 2]})
    assert len(re.findall(r"^Job \d+: tokenizing", said, re.M)) == 1
    shutil.rmtree(where / load(where).tokens)
    lines = where / load(where).corpus / "train.jsonl"
    text = lines.read_text()
    lines.write_text("{")
    three = other | {"grid": {"seeds": [1, 2, 3]}}
    said = run("runs", check=False, **three)
    assert "line 1 is not a document" in said
    assert not re.search(r"^Job \d+: training", said, re.M)
    lines.write_text(text)
    run("runs", **three)
    assert len(list((where / "results/tiny/runs").rglob("run.json"))) == 1 + 3


def test_after_a_kill_the_same_command_goes_on(tmp_path):
    """S-03: SIGKILL of the controller and all its jobs, in the middle of a training."""
    long = {"training": TINY["training"] | {"steps": 4000, "log_every": 5}}
    where = lay_out(tmp_path, **ONE, **long)
    process, log = start(where, "runs", *STUDY)
    until(lambda: steps(where))
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(60)
    assert not list((where / "results").rglob("run.json"))
    # The run that was under way is not wanted any more, but its study's lock must be free.
    lay_out(where, **ONE)
    done = snakemake(where, "runs", *STUDY)
    assert "3 of 3 steps" in done.stdout or "2 of 2 steps" in done.stdout, log.read_text()
    assert len(list((where / "results").rglob("run.json"))) == 1


def test_a_controller_that_is_stopped_stops_its_trainings_with_their_state(tmp_path):
    """SIGTERM and SIGINT of the controller alone, then Ctrl-C, which the terminal sends to all:
    each time the training saves its state and ends, and the same command goes on from there."""
    long = {"training": TINY["training"] | {"steps": 10**6, "log_every": 5}}
    where = lay_out(tmp_path, **ONE, **long)
    ends = [
        lambda pid: os.kill(pid, signal.SIGTERM),
        lambda pid: os.kill(pid, signal.SIGINT),
        lambda pid: os.killpg(pid, signal.SIGINT),
    ]
    reached = 0
    for end in ends:
        process, log = start(where, "runs", *STUDY)
        until(lambda last=reached: max(steps(where), default=0) > last)
        if not reached:
            looked = snakemake(where, "-n", "runs", *STUDY).stdout
            assert f"Study tiny is worked on by process {process.pid} on " in looked
        end(process.pid)
        then = time.monotonic()
        assert process.wait(60) != 0
        assert time.monotonic() - then < 15
        saved = max((where / "work/runs").rglob("step-*.safetensors"))
        trained = "".join(path.read_text() for path in (where / "work/logs/train").rglob("*.log"))
        said = log.read_text() + trained
        assert "Traceback" not in said, said
        assert reached == 0 or f"resumes at step {reached} of" in said, said
        assert int(saved.stem.removeprefix("step-")) >= max(steps(where))
        reached = int(saved.stem.removeprefix("step-"))
    assert not list((where / "results").rglob("run.json"))


def test_files_that_a_kill_left_half_done_are_made_again_without_being_asked(
    tmp_path, tmp_path_factory
):
    """S-03: Snakemake calls them incomplete and would stop."""
    where = copy(finished(tmp_path_factory)[0], tmp_path / "clone")
    process, log = start(where, "-F", "results/tiny/tables/main.csv", *STUDY)
    marks = where / ".snakemake/incomplete"
    until(lambda: "table main" in log.read_text() and any(marks.iterdir()))
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(60)
    done = snakemake(where, "tables", *STUDY)
    assert "Incomplete" not in done.stdout
    assert (where / "results/tiny/tables/main.csv").read_bytes()


def test_reuse_false_trains_and_measures_anew_once(tmp_path, tmp_path_factory):
    where = copy(finished(tmp_path_factory)[0], tmp_path / "clone")
    study = load(where)
    mine = next(run for run in study.runs if run.cell == "perloop-raw" and run.seed == 1)
    write_config(where, TINY | ONE | {"cells": {"perloop-raw": None}, "corpus": CORPUS})
    folder, state = where / study.results / "runs" / mine.name, where / "work/runs" / mine.name
    files = RunFiles(study)
    before = json.loads((folder / "run.json").read_text())
    trajectory, exits = (
        (folder / "trajectory.csv").read_bytes(),
        (where / files.record(mine.name, "exits").with_name("exits.csv")),
    )
    numbers, then = exits.read_bytes(), exits.stat().st_mtime_ns
    target = files.measured(mine.name).as_posix()
    snakemake(where, target, "runs", *STUDY, "--config", "reuse=false")
    after = json.loads((folder / "run.json").read_text())
    assert after["provenance"]["started"] > before["provenance"]["started"]
    # On the same machine and number of threads nothing else may differ.
    assert after["files"]["trajectory.csv"] == before["files"]["trajectory.csv"]
    assert (folder / "trajectory.csv").read_bytes() == trajectory
    assert exits.read_bytes() == numbers and exits.stat().st_mtime_ns > then
    assert "starts from nothing: reuse: false asks for it" in (state / "train.log").read_text()
    # Requeued, the same job must resume: the mark is used up.
    assert not (state / "remake").exists()
    others = [run for run in study.runs if run.name != mine.name]
    for run in others:
        record = where / study.results / "runs" / run.name / "run.json"
        source = finished(tmp_path_factory)[0] / record.relative_to(where)
        assert record.stat().st_mtime_ns == source.stat().st_mtime_ns
    # A mark that an interrupted start has left drops no weights of one that wants nothing anew.
    (state / "remake").touch()
    (folder / "run.json").unlink()
    snakemake(where, "runs", *STUDY)
    assert "already trained" in (state / "train.log").read_text()
    assert not (state / "remake").exists() and exits.read_bytes() == numbers


@pytest.mark.parametrize("arguments", [["--profile", "slrum"], ["--profile", "here/slurm"]])
def test_a_misspelt_profile_stops_before_the_first_job(arguments, tmp_path):
    """S-08: a Slurm run must never fall back to running here."""
    where = lay_out(tmp_path)
    done = subprocess.run(
        [*command("all", *STUDY)[:3], *arguments, "all", *STUDY],
        cwd=where,
        env=environment(where),
        text=True,
        capture_output=True,
        timeout=100,
    )
    assert done.returncode != 0
    assert arguments[1] in done.stdout + done.stderr
    assert not (where / "work").exists()


def test_without_cores_or_profile_nothing_starts(tmp_path):
    where = lay_out(tmp_path)
    done = subprocess.run(
        [*command()[:3], "all", *STUDY],
        cwd=where,
        env=environment(where),
        text=True,
        capture_output=True,
        timeout=100,
    )
    assert done.returncode != 0
    assert "--cores" in done.stdout + done.stderr
    assert not (where / "work/runs").exists()


def test_results_of_another_user_are_named_before_the_first_job(tmp_path):
    """Two users in one folder. As root, who may write anywhere, a read-only mount plays theirs."""
    where = lay_out(tmp_path / "checkout", **ONE)
    theirs = tmp_path / "theirs"
    theirs.mkdir(mode=0o555)
    mounted = os.geteuid() == 0
    if mounted:
        mount = ["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", theirs]
        if not shutil.which("mount") or subprocess.run(mount, check=False).returncode:
            pytest.skip("root here, and nothing can be mounted")
    try:
        for config, target in (("results", "runs"), ("work", "runs"), ("work", "forecast")):
            given = ("--config", f"{config}={theirs}", "--", target)
            done = snakemake(where, *STUDY, *given, check=False)
            assert done.returncode != 0
            assert "Traceback" not in done.stdout
            assert f"study tiny: {theirs} (it belongs to {theirs.owner()}) can't be" in done.stdout
            assert "--config work=DIR results=DIR" in done.stdout
            assert "fetching" not in done.stdout.split("Job stats")[1].split("total")[1]
    finally:
        if mounted:
            subprocess.run(["umount", theirs], check=True)
