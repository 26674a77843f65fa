"""What a person sees at the terminal: little, short lines, all that matters. The words of real
Snakemake; the counts from constructed folders."""

import io
import json
import logging
import os
import pty
import re
import shutil
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest
import snakemake
from snakemake_interface_logger_plugins.common import LogEvent

from blindspot.plan import overview, terminal
from blindspot.plan.overview import Watch, ahead, so_far
from blindspot.plan.terminal import LogHandler, failure, said
from studies import STUDY, TINY, checkout, environment, lay_out
from test_forecast import calibrate, finish, load, measure

#: Lines and characters of a terminal that nobody made larger.
SCREEN, LONGEST = 30, 200
#: The folder of the paper's study, for whom neither corpus nor runs are there.
PLANS = {
    "the paper": ("-n", "all"),
    "the demo": ("-n", "all", "--configfile", "studies/demo.yaml"),
    "forecast": ("-c1", "forecast"),
    "a cluster": ("--profile", "slurm", "-n", "all"),
}


def typed(where, *arguments):
    """What Snakemake says, as a user calls it."""
    done = subprocess.run(
        [sys.executable, "-m", "snakemake", *arguments],
        cwd=where,
        env=environment(where),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=300,
    )
    return done.returncode, done.stdout


@pytest.fixture(scope="module")
def fresh(tmp_path_factory):
    return checkout(tmp_path_factory.mktemp("fresh"))


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANS)
def test_what_is_ahead_fits_on_a_screen(name, fresh):
    code, text = typed(fresh, *PLANS[name])
    lines = text.splitlines()
    assert code == 0, text
    assert len(lines) <= SCREEN and max(map(len, lines)) < LONGEST, text
    study = "demo" if name == "the demo" else "paper"
    assert f"Forecast for study {study}: " in text
    if name != "forecast":
        runs = 24 if study == "demo" else 42
        assert f"Study {study}, {runs} runs: {runs} to train and measure." in text
        hours = "core-hours" if study == "demo" else "GPU-hours"
        assert re.search(rf"^size +cell +to train +{hours}$", text, re.M)
        size = "0.1m" if study == "demo" else "44m "
        assert re.search(rf"^{size} +perloop-rms +3 +[0-9.]+$", text, re.M)
        assert f" {runs} train, {runs} measure," in text
        assert "Logs are in work/logs/" in text and "Nothing was started" in text


@pytest.mark.slow
def test_p_shows_every_job_with_its_command(fresh):
    _, text = typed(fresh, "-n", "-p", "all", "--configfile", "studies/demo.yaml")
    assert len(re.findall(r"^Job \d+: training 0.1m/", text, re.M)) == 24
    assert len(re.findall(r"^Shell command: blindspot train ", text, re.M)) == 24


@pytest.mark.slow
def test_a_failed_job_says_why_in_three_lines(tmp_path):
    """At once, and in the last words, where the log is; the exit code tells it too."""
    where = lay_out(tmp_path)
    for split in ("train", "validation", "test"):
        (where / f"{split}.txt").write_text(" ")
    code, text = typed(where, "-c1", "all", *STUDY)
    assert code == 1
    assert "Traceback" not in text and "shell:" not in text
    assert max(map(len, text.splitlines())) < LONGEST
    (log,) = (where / "work/logs/corpus").iterdir()
    why = terminal.last_error(log)
    assert why.startswith("corpus 'local': split 'train' is empty")
    at_once, last = text.split("Study tiny: not complete.")
    flat = " ".join(at_once.split())
    assert f"failed: corpus: {why} log: work/logs/corpus/{log.name}" in flat
    assert "failed: corpus " in last and f"log: work/logs/corpus/{log.name}" in last
    assert "the same command goes on from there" in last


@pytest.mark.slow
def test_a_run_has_one_line_that_changes_on_a_terminal(tmp_path):
    """On a pseudo-terminal of 80 columns, until the training is over."""
    few = {"cells": {"perloop-raw": None}, "grid": {"seeds": [1]}}
    where = lay_out(tmp_path, **few, training=TINY["training"] | {"steps": 3})
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "snakemake", "-c1", "runs", *STUDY],
        cwd=where,
        env=environment(where, COLUMNS="80"),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    said = b""
    while True:
        try:
            said += os.read(ours, 65536)
        except OSError:  # all of it was read
            break
    assert process.wait(60) == 0
    # What a terminal would have made of it: what follows \r\033[K replaces its line.
    lines = [line.split("\r\033[K") for line in said.decode().replace("\r\n", "\n").split("\n")]
    states = [text for line in lines for text in line if text.startswith("tiny: ")]
    assert states and states[0].startswith("tiny: 0 of 1 runs trained, 0 measured")
    assert max(map(len, states)) < 80
    shown = [line[-1] for line in lines]
    assert not [line for line in shown if line.startswith("tiny: ")]
    assert any(line.startswith("Study tiny: done.") for line in shown)


def handler(**settings):
    """Our handler, and what it wrote."""
    plain = {"stdout": False, "nocolor": False, "printshellcmds": False, "verbose": False}
    made = LogHandler(SimpleNamespace(**plain | {"debug_dag": False} | settings), None)
    made.stream = io.StringIO()
    return made


def record(message, level=logging.INFO, path=__file__, **extra):
    made = logging.LogRecord("snakemake", level, str(path), 1, message, (), None)
    made.__dict__.update(extra)
    return made


def test_messages_of_the_study_and_warnings_are_said_and_snakemakes_own_are_not():
    theirs = f"{snakemake.__path__[0]}/workflow.py"
    assert said(record("Study tiny")) == "Study tiny"
    assert said(record("Building DAG of jobs...", path=theirs)) == ""
    assert said(record("Building DAG of jobs...")) == "Building DAG of jobs..."
    assert said(record("Nothing to be done", path=theirs)) == "Nothing to be done"
    assert said(record("left over", logging.WARNING, theirs)) == "left over"
    assert said(record("details", logging.DEBUG, theirs)) == ""
    assert said(record("job", path=theirs, event=LogEvent.JOB_INFO)) == ""
    assert said(record("bad", logging.ERROR, theirs, event=LogEvent.ERROR)) == "bad"
    stats = {"train": 3, "table": 16, "total": 19}
    info = record("Job stats:", path=theirs, event=LogEvent.RUN_INFO, stats=stats)
    assert said(info) == "Jobs: 3 train, 16 table"
    own = handler()
    own.emit(info)
    own.emit(info)  # a dry run has it twice
    assert own.stream.getvalue() == "Jobs: 3 train, 16 table\n"


def test_long_lines_are_wrapped_and_keep_every_word():
    path = "results/" + "x" * 300
    text = "word " * 100 + path + " end"
    lines = said(record(text)).splitlines()
    assert " ".join(lines).split() == text.split()
    assert all(len(line) <= 160 or line == path for line in lines)


def test_a_failure_has_the_last_error_of_its_log(tmp_path):
    log = tmp_path / "train.log"
    log.write_text("error: an old one\nstep 3\nerror: disk full\n")
    assert failure("train", [str(log)]) == f"failed: train: disk full\n  log: {log}"
    # What another attempt said before this one began is not why this one ended.
    log.write_text(
        "error: stopped by SIGUSR2\na/b: resumes at step 500 of 2000\na/b: step 600/2000  CE\n"
    )
    assert failure("train", [str(log)], "out of memory").startswith(
        "failed: train: out of memory\n"
    )
    log.write_text("error: stopped\na/b: resumes at step 500 of 2000\nerror: disk full\n")
    assert failure("train", [str(log)]).startswith("failed: train: disk full\n")
    assert failure("train", [], "no time") == "failed: train: no time"
    assert failure("train", ["nowhere"]) == "failed: train\n  log: nowhere"


def test_the_line_at_the_bottom_stays_below_what_is_said(monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    own = handler()
    own.show("not a terminal")
    assert own.stream.getvalue() == ""
    own.is_terminal = True
    own.show("1 of 3")
    own.emit(record("hello"))
    own.show("x" * 30)
    own.emit(record("bad", logging.ERROR))
    own.close()
    clear, red = "\r\033[K", "\033[31mbad\033[0m\n"
    short = "x" * 16 + "..."
    assert own.stream.getvalue() == (
        f"{clear}1 of 3{clear}hello\n1 of 3{clear}{short}{clear}{red}{short}{clear}"
    )


def test_a_terminal_that_is_gone_stops_nothing():
    tried = []

    class Gone(io.StringIO):
        def write(self, text):
            tried.append(text)
            raise BrokenPipeError

    own = handler()
    own.stream = Gone()
    own.emit(record("hello"))
    assert tried


def test_what_is_ahead_is_shown_by_cell(tmp_path):
    """Three cells, one of them done, one to be measured; hours as a calibration has them."""
    study = load(tmp_path, sizes={"0.1m": {"d_model": 64, "layers": 1, "heads": 2, "batch": 4}})
    calibrate(study, 0.1)
    for run in study.runs:
        if run.cell == "terminal-rms":
            finish(study, run)
        elif run.cell == "perloop-rms":
            finish(study, run, measured=run.seed == 42)
            (study.work / "runs" / run.name).mkdir(parents=True)
            (study.work / "runs" / run.name / "weights.safetensors").write_text("")
    lines = ahead(study, 2).splitlines()
    assert lines[0].split() == [
        "size", "cell", "finished", "to", "measure", "to", "train", "core-hours"
    ]  # fmt: skip
    assert [line.split()[:-1] for line in lines[1:3]] == [
        ["0.1m", "perloop-rms", "1", "2"],
        ["0.1m", "perloop-raw", "3"],
    ]
    assert lines[2].index("3") == lines[0].index("to train") + len("to train") - 1
    assert lines[3].startswith(f"Forecast for study {study.config.study}: 3 trainings, 5 meas")
    many = {f"cell-{n}": {"loss": "per-loop", "readout": "raw"} for n in range(20)}
    lines = ahead(load(tmp_path, cells=many), 2).splitlines()
    assert len([line for line in lines if "cell-" in line]) == overview.ROWS
    assert f"and {40 - overview.ROWS} more cells" in lines


def test_how_far_it_is_counts_what_is_there(tmp_path):
    study = load(tmp_path)
    study.tokens.mkdir(parents=True)
    line, counts = so_far(study, 2)
    assert line.endswith(": 0 of 12 runs trained, 0 measured; corpus and tokens")
    assert counts == (0, 0, 0)
    (study.tokens / "tokens.json").write_text("{}")
    for run in study.runs[:3]:
        finish(study, run, measured=run is not study.runs[0])
    failed = study.results / "runs" / study.runs[3].name
    failed.mkdir(parents=True)
    (failed / "failed.json").write_text(json.dumps({"error": "diverged"}))
    line, counts = so_far(study, 2)
    assert "3 of 12 runs trained, 2 measured, 1 failed; about " in line and line.endswith(" left")
    assert counts == (3, 2, 1)
    shutil.rmtree(failed)
    for run in study.runs[3:]:
        finish(study, run)
    measure(study, study.runs[0])
    assert so_far(study, 2)[0].endswith("12 of 12 runs trained, 12 measured; tables and figures")


def test_a_watch_shows_each_state_on_a_terminal_and_elsewhere_tells_news_alone(monkeypatch):
    looks = iter([("a", (0,)), ("b", (0,)), ("c", (1,)), ("d", (1,)), ("e", (2,))])
    over = threading.Event()

    def look(*_):
        try:
            return next(looks)
        except StopIteration:
            over.set()
            return ("e", (2,))

    monkeypatch.setattr(overview, "so_far", look)
    monkeypatch.setattr(overview, "PLAIN", 0.0)
    told, shown = [], []
    watch = Watch(None, 1, told.append, None, every=0.001)
    watch.start()
    assert over.wait(10)
    watch.stop()
    watch.join(10)
    assert [re.sub(r"^\d\d:\d\d ", "", line) for line in told] == ["c", "e"]
    looks, told = iter([("a", (0,)), ("b", (0,))]), []
    over.clear()
    watch = Watch(None, 1, told.append, shown.append, every=0.001)
    watch.start()
    assert over.wait(10)
    watch.stop()
    watch.join(10)
    assert shown[:3] == ["a", "b", "e"] and "" in shown[-2:] and told == []
