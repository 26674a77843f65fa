"""Locks of controllers, marks of runs to make anew, and remembered digests: no Snakemake here."""

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time

import pytest

from blindspot.config import digests
from blindspot.errors import LockedError
from blindspot.files import sha256_file
from blindspot.training import remake
from blindspot.workflow import controller

HOLD = "import sys, time, pathlib; from blindspot.workflow import controller as c; \
c.claim(pathlib.Path(sys.argv[1])); print('held', flush=True); time.sleep(100)"


@pytest.fixture
def held(tmp_path):
    """A lock that another process holds, and the process."""
    lock = tmp_path / "locks/study.lock"
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(lock)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "held\n"
    yield lock, process
    process.kill()
    process.wait()


def test_a_held_lock_names_its_holder_and_dies_with_it(held):
    lock, process = held
    who = f"process {process.pid} on {os.uname().nodename}, since 20"
    assert controller.holder(lock).startswith(who)
    with pytest.raises(LockedError, match=who):
        controller.claim(lock)
    process.kill()
    process.wait()
    assert controller.holder(lock) is None
    controller.claim(lock)
    controller.claim(lock)
    assert json.loads(lock.read_text())["pid"] == os.getpid()


def test_nobody_holds_what_is_not_there(tmp_path):
    assert controller.holder(tmp_path / "none") is None


def test_who_waits_learns_that_the_other_made_it(held, tmp_path):
    lock, _ = held
    made, heard = tmp_path / "tokens.json", []
    timer = threading.Timer(0.3, made.touch)
    timer.start()
    assert controller.claim_or_await(lock, made, heard.append, every=0.05)
    assert len(heard) == 1 and heard[0].startswith("process ")


def test_who_waits_takes_over_when_the_other_dies(held, tmp_path):
    lock, process = held
    timer = threading.Timer(0.3, process.kill)
    timer.start()
    assert not controller.claim_or_await(lock, tmp_path / "tokens.json", print, every=0.05)
    assert str(os.getpid()) in lock.read_text()


def test_a_restarted_controller_never_lets_go(tmp_path):
    """Another one could slip in while the command starts over."""
    lock = tmp_path / "locks/study.lock"
    code = (
        "import os, sys, time, pathlib, subprocess\n"
        "from blindspot.workflow import controller as c\n"
        "first = not c._HELD\n"
        "c.claim(pathlib.Path(sys.argv[1]))\n"
        "if first: c.restart(moved=False)\n"
        "job = subprocess.Popen(['sleep', '100'])\n"
        "print(job.pid, flush=True); time.sleep(100)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(lock)], stdout=subprocess.PIPE, text=True
    )
    while not lock.exists() or not lock.read_text():
        time.sleep(0.01)
    answers = []
    while not select.select([process.stdout], [], [], 0)[0]:
        answers.append(controller.holder(lock))
    job = int(process.stdout.readline())
    assert len(answers) > 20
    assert all(answer and f"process {process.pid} on" in answer for answer in answers)
    process.kill()
    process.wait()
    # What a controller started doesn't hold its study.
    assert controller.holder(lock) is None
    os.kill(job, signal.SIGKILL)


def test_a_marked_run_loses_its_state_once(tmp_path):
    state, out = tmp_path / "state", tmp_path / "out"
    for path in (state / "weights.safetensors", state / "step-00000010.safetensors"):
        path.parent.mkdir(exist_ok=True)
        path.touch()
    (state / "train.log").touch()
    for name in ("measure-12345678", "measure-9abcdef0"):
        (out / name).mkdir(parents=True)
        (out / name / "measure.json").touch()
    assert not remake.clear_if_asked(state, out)
    assert (state / "weights.safetensors").exists()
    remake.ask(state)
    assert remake.clear_if_asked(state, out)
    assert [p.name for p in state.iterdir()] == ["train.log"]
    assert not list(out.iterdir())
    (state / "step-00000020.safetensors").touch()
    assert not remake.clear_if_asked(state, out)
    assert (state / "step-00000020.safetensors").exists()


def test_a_digest_is_remembered_until_the_file_changes(tmp_path, monkeypatch):
    monkeypatch.setattr(digests, "SETTLED_NS", 0)
    text, store = tmp_path / "a.txt", tmp_path / "work/digests.json"
    text.write_text("one")
    time.sleep(0.02)
    first = digests.Digests(store).sha256(text)
    assert first == sha256_file(text)
    read = []
    monkeypatch.setattr(digests, "sha256_file", lambda path: read.append(path) or sha256_file(path))
    assert digests.Digests(store).sha256(text) == first and not read
    # Same size, same mtime, other content: the ctime tells.
    stat = text.stat()
    text.write_text("two")
    os.utime(text, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert digests.Digests(store).sha256(text) == sha256_file(text) != first
    assert read


def test_a_file_that_was_just_written_is_not_remembered(tmp_path):
    text, store = tmp_path / "a.txt", tmp_path / "digests.json"
    text.write_text("one")
    digests.Digests(store).sha256(text)
    assert not store.exists()


@pytest.mark.parametrize("damaged", ["", "{", "[1]", '{"x": 3}', '{"x": [1, 2]}'])
def test_a_damaged_store_costs_time_never_truth(damaged, tmp_path):
    text, store = tmp_path / "a.txt", tmp_path / "digests.json"
    text.write_text("one")
    store.write_text(damaged.replace('"x"', json.dumps(str(text.resolve()))))
    assert digests.Digests(store).sha256(text) == sha256_file(text)


def test_a_store_that_cannot_be_written_is_done_without(tmp_path, monkeypatch):
    monkeypatch.setattr(digests, "SETTLED_NS", 0)
    text = tmp_path / "a.txt"
    text.write_text("one")
    time.sleep(0.02)
    (tmp_path / "work").write_text("a file where a folder should be")
    assert digests.Digests(tmp_path / "work/digests.json").sha256(text) == sha256_file(text)
