"""Locks: who has one is said, the dead hold none; file systems and users that cannot are named."""

import errno
import fcntl
import json
import os
import subprocess
import sys
import threading
import time

import pytest

from blindspot import locks
from blindspot.errors import BlindspotError, LockedError
from durable_jobs import ClusterError, records

HOLD = (
    "import sys, time; from pathlib import Path; from blindspot import locks\n"
    "lock = locks.take(Path(sys.argv[1])); print('held', flush=True); time.sleep(100)"
)


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
    assert locks.holder(lock).startswith(who)
    with pytest.raises(LockedError, match=who):
        locks.take(lock)
    process.kill()  # SIGKILL: it can clean nothing up
    process.wait()
    assert locks.holder(lock) is None
    with locks.take(lock):
        assert json.loads(lock.read_text())["pid"] == os.getpid()
        assert str(os.getpid()) in locks.holder(lock)
    assert locks.holder(lock) is None and lock.exists()


def test_nobody_holds_what_is_not_there(tmp_path):
    assert locks.holder(tmp_path / "none") is None


def test_what_a_holder_starts_does_not_hold_its_lock(tmp_path):
    """A job that outlives its controller must not keep the next one out."""
    with locks.take(tmp_path / "lock"):
        job = subprocess.Popen(["sleep", "100"])
    try:
        assert locks.holder(tmp_path / "lock") is None
    finally:
        job.kill()
        job.wait()


def test_a_look_does_not_keep_anybody_out(tmp_path):
    """`snakemake -n` looks; a study that starts in this moment must start."""
    path = tmp_path / "lock"
    with locks.take(path):
        pass
    with open(path) as look:
        fcntl.flock(look, fcntl.LOCK_SH)
        threading.Timer(0.05, fcntl.flock, (look, fcntl.LOCK_UN)).start()
        with locks.take(path):
            assert f"process {os.getpid()} on " in str(locks.holder(path))
    assert locks.holder(path) is None


def test_who_waits_takes_over_when_the_other_dies(held):
    lock, process = held
    heard = []
    threading.Timer(0.5, process.kill).start()
    start = time.monotonic()
    with locks.take(lock, heard.append):
        assert time.monotonic() - start > 0.3
        assert json.loads(lock.read_text())["pid"] == os.getpid()
    assert len(heard) == 1 and heard[0].startswith(f"process {process.pid} on ")


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_said_at_once(number, tmp_path, monkeypatch):
    """Lustre without -o flock answers ENOSYS: nobody holds the lock, and waiting would be vain."""

    def unable(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", unable)
    for waiting in (None, print):
        with pytest.raises(BlindspotError, match="file system can't lock files") as caught:
            locks.take(tmp_path / "lock", waiting)
        assert not isinstance(caught.value, LockedError)
        assert os.strerror(number) in str(caught.value) and str(tmp_path) in str(caught.value)
    assert locks.holder(tmp_path / "lock") is None


@pytest.mark.parametrize("wait", [False, True])
def test_a_submission_without_locks_is_one_message(wait, tmp_path, monkeypatch):
    def unable(*_):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", unable)
    with pytest.raises(ClusterError, match=r"submit\.lock: .*can't lock files.*submitit-folder"):
        records.lock(tmp_path / "submit.lock", wait)


def test_a_lock_of_another_user_is_said_with_its_holder_or_owner(held, tmp_path, monkeypatch):
    """Their file can be read and not written: as root this is played by a refusing `open`."""
    lock, process = held
    free = tmp_path / "free.lock"
    free.write_text("{}")
    real = os.open

    def refuse(path, flags, *rest, **named):
        if flags & (os.O_RDWR | os.O_WRONLY):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real(path, flags, *rest, **named)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(LockedError, match=f"process {process.pid} on "):
        locks.take(lock)
    with pytest.raises(BlindspotError, match="can't be written") as caught:
        locks.take(free)
    assert not isinstance(caught.value, LockedError)
    assert f"belongs to {free.owner()}" in str(caught.value) and "`work`" in str(caught.value)
