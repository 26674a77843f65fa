"""The executor plugin on one machine, and what of it needs no cluster."""

import os
import pickle
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from snakemake.common.tests import TestWorkflowsLocalStorageBase
from submitit.helpers import DelayedSubmission

from durable_jobs import RefusedError, local, records
from durable_jobs.task import BASH_ENV, TASK, Task
from snakemake_executor_plugin_submitit import ExecutorSettings
from snakemake_executor_plugin_submitit.translate import local_options

sys.path.insert(0, str(Path(__file__).parent / "slurm"))

from study import TOY, Study


@pytest.mark.slow
class TestSuite(TestWorkflowsLocalStorageBase):
    """Snakemake's own tests of executor plugins."""

    __test__ = True

    def get_executor(self) -> str:
        return "submitit"

    def get_executor_settings(self) -> ExecutorSettings:
        return ExecutorSettings(cluster="local")


@pytest.fixture
def submission(tmp_path: Path) -> Callable[..., Path]:
    """Writes a batch of one job, as the executor does; its folder."""

    def write(command: str, grace: float = 5.0, max_requeues: int = 3) -> Path:
        folder = tmp_path / "batch"
        folder.mkdir()
        (folder / "bash_env").write_text(BASH_ENV)
        mark = folder / "0.cancel"
        task = Task("name", command, mark, grace, max_requeues, {"EXTRA": "1"}, tmp_path)
        call = DelayedSubmission(task)
        call.set_timeout(1, max_requeues)
        call.dump(folder / "0.pkl")
        return folder

    return write


def trainer(steps: int, seconds: float) -> str:
    """The toy trainer in a pipe, as Snakemake would run it."""
    script = f"{sys.executable} {TOY / 'trainer.py'} --out out --state state --every 1000"
    script += f" --steps {steps} --seconds {seconds} 2>&1 | tee log"
    return f"bash -c {shlex.quote(f'set -o pipefail; {script}')}"


def history(folder: Path) -> list[list[str]]:
    lines = (folder / "state/history").read_text().splitlines()
    return [line.split()[2:] for line in lines]


def start(folder: Path, **env: str) -> subprocess.Popen[bytes]:
    """One attempt, in a process like the runner's."""
    given = {"SUBMITIT_EXECUTOR": "local", "SUBMITIT_LOCAL_JOB_ID": "local_0", **env}
    return subprocess.Popen([*TASK, str(folder)], env=os.environ | given)


def cwd(link: Path) -> str:
    try:
        return str(link.readlink())
    except OSError:
        return ""


def wait_for(path: Path, seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < end, f"{path} did not appear"
        time.sleep(0.05)


def verdict(folder: Path) -> tuple[str, str]:
    outcome, value = pickle.loads((folder / "local_0_0_result.pkl").read_bytes())
    return outcome, str(value)


def test_time_limits(
    submission: Callable[..., Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Each attempt goes on where the last has stopped, until the work is done."""
    folder = submission(trainer(24, 0.1))
    local.run(folder, 2.8, 1.4, 9)
    assert verdict(folder)[0] == "success"
    events = history(tmp_path)
    assert len(events) >= 4
    assert events[-1][1:] == ["end", "24"]
    stops = [event[2] for event in events if event[1] == "stop"]
    starts = [event[2:] for event in events if event[1] == "start"]
    assert starts == [[step, str(n)] for n, step in enumerate(["0", *stops])]
    log = capfd.readouterr().out
    assert all(f"== attempt {n + 1} of name" in log for n in range(len(starts)))


def test_last_attempt(submission: Callable[..., Path], tmp_path: Path) -> None:
    """A job on its last allowed attempt saves its state, and ends as failed."""
    folder = submission(trainer(1000, 0.1), max_requeues=1)
    local.run(folder, 2.5, 1.5, 1)
    outcome, text = verdict(folder)
    assert outcome == "error"
    assert "timed-out too many times" in text
    assert [event[1] for event in history(tmp_path)] == ["start", "stop", "start", "stop"]


def test_signal_twice(submission: Callable[..., Path], tmp_path: Path) -> None:
    """The signal may come twice, and to all processes; the attempt ends as one to be repeated."""
    folder = submission(trainer(1000, 0.3))
    process = start(folder)
    wait_for(tmp_path / "state/history")
    process.send_signal(signal.SIGUSR2)
    time.sleep(0.05)
    process.send_signal(signal.SIGUSR2)
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == local.LOCAL_REQUEUE_RETURN_CODE
    assert [event[1] for event in history(tmp_path)] == ["start", "stop"]
    assert not (folder / "local_0_0_result.pkl").exists()


def test_done_while_stopped(submission: Callable[..., Path], tmp_path: Path) -> None:
    """A command that comes to its end while it is asked to stop has succeeded."""
    script = "import signal,time,pathlib as p;signal.signal(signal.SIGUSR2,lambda *_:exit(0));"
    script += "p.Path('begun').touch();time.sleep(60)"
    folder = submission(f'{sys.executable} -c "{script}"')
    process = start(folder)
    wait_for(tmp_path / "begun")
    process.send_signal(signal.SIGUSR2)
    assert process.wait(20) == 0
    assert verdict(folder)[0] == "success"
    # It has a result, so another attempt does nothing.
    (tmp_path / "begun").unlink()
    assert start(folder).wait(20) == 0
    assert not (tmp_path / "begun").exists()


def test_deaf_command(submission: Callable[..., Path], tmp_path: Path) -> None:
    """One that does not stop in time is killed with all its processes, and starts over."""
    folder = submission("(touch begun; sleep 50; touch late) & sleep 50", grace=0.5)
    process = start(folder)
    wait_for(tmp_path / "begun")
    begin = time.monotonic()
    process.send_signal(signal.SIGUSR2)
    assert process.wait(20) == local.LOCAL_REQUEUE_RETURN_CODE
    assert time.monotonic() - begin < 5
    left = [path for path in Path("/proc").glob("[0-9]*/cwd") if cwd(path) == str(tmp_path)]
    assert not left


def test_environment(submission: Callable[..., Path], tmp_path: Path) -> None:
    """The command finds this environment's programs first, and bash obeys an own BASH_ENV."""
    mine = tmp_path / "mine.sh"
    mine.write_text("export MINE=1\n")
    folder = submission("bash -c 'echo \"$PATH|$EXTRA|$MINE|$SUBMITIT_RESTARTS\" > seen'")
    assert start(folder, BASH_ENV=str(mine), SUBMITIT_RESTARTS="2").wait(20) == 0
    path, *others = (tmp_path / "seen").read_text().strip().split("|")
    assert path.split(os.pathsep)[0] == str(Path(sys.executable).parent)
    assert others == ["1", "1", "2"]


def test_half_written_pickle(submission: Callable[..., Path]) -> None:
    """An attempt killed while submitit rewrote its pickle does not spoil the next."""
    folder = submission("true")
    (folder / "local_0_submitted.pkl.save_tmp").write_bytes(b"half")
    assert start(folder).wait(20) == 0
    assert verdict(folder)[0] == "success"
    assert not list(folder.glob("*.save_tmp"))


def test_command_that_ends_at_once(submission: Callable[..., Path]) -> None:
    """Its status is not lost, although it has ended before anyone looks."""
    folder = submission("exit 7")
    assert start(folder).wait(20) == 1
    assert verdict(folder)[0] == "error"
    assert "exit status 7" in verdict(folder)[1]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> local.Local:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,GPU-5")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return local.Local(ExecutorSettings(signal_delay=20), None, 5)


def test_own_gpus(machine: local.Local, tmp_path: Path) -> None:
    """No two jobs share a GPU, not even with another controller; the rest waits its turn."""
    sleeper = (
        "echo $CUDA_VISIBLE_DEVICES > gpus; touch begun; until [ -e stop ]; do sleep 0.1; done"
    )

    def submit(name: str, where: local.Local, gpu: int) -> records.Record:
        job = records.Record(tmp_path / "jobs" / f"{name}.0", tmp_path / name)
        job.folder.mkdir()
        task = Task(name, sleeper, job.cancelled, 5, 3, {}, job.folder)
        DelayedSubmission(task).dump(job.folder / "0.pkl")
        where.submit([job], local_options(1, {"gpu": gpu, "runtime": 5}), 0)
        return job

    neighbour = local.Local(machine.settings, None, 5)
    first = submit("first", machine, 1)
    wait_for(first.folder / "begun")
    second = submit("second", neighbour, 1)
    wait_for(second.folder / "begun")
    both, none, gone = (
        submit("both", machine, 2),
        submit("none", machine, 0),
        submit("gone", machine, 1),
    )
    wait_for(none.folder / "begun")
    gone.cancelled.touch()
    given = [(job.folder / "gpus").read_text().strip() for job in (first, second, none)]
    assert given == ["4", "GPU-5", ""]
    (first.folder / "stop").touch()
    none.cancelled.touch()
    wait_for(first.result)
    time.sleep(2)
    assert not (both.folder / "begun").exists(), "one of its GPUs is taken"
    assert machine.state(both)[0] == "RUNNING"
    assert machine.state(gone)[0] == "", "cancelled while it waited"
    (second.folder / "stop").touch()
    wait_for(second.result)
    wait_for(both.folder / "begun")
    assert (both.folder / "gpus").read_text().strip() == "4,GPU-5"
    (both.folder / "stop").touch()
    wait_for(both.result)
    assert not (gone.folder / "begun").exists()
    assert first.failure() == both.failure() == ""
    assert none.failure() is None, "cancelled"
    with pytest.raises(RefusedError, match="gpu=3, but this machine shows 2 GPUs"):
        submit("five", machine, 3)


def test_visible_gpus() -> None:
    assert local.visible_gpus({"CUDA_VISIBLE_DEVICES": ""}) == []
    assert local.visible_gpus({"CUDA_VISIBLE_DEVICES": "1,3"}) == ["1", "3"]
    assert local.visible_gpus({"CUDA_VISIBLE_DEVICES": "-1"}) == []
    assert local.visible_gpus({"CUDA_VISIBLE_DEVICES": " 2, -1,0"}) == ["2"]


@pytest.fixture
def study(tmp_path: Path) -> Iterator[Callable[..., Study]]:
    studies: list[Study] = []

    def make(**toy: object) -> Study:
        studies.append(Study(tmp_path, dict(os.environ), "local", **toy))
        return studies[-1]

    yield make
    for each in studies:
        each.end()
        for folder in each.folder.glob("work/submitit/*/"):
            (folder / "0.cancel").touch()


def test_controller_killed(study: Callable[..., Study]) -> None:
    """The next controller finds what runs, submits nothing twice; Ctrl-C ends it within 10 s."""
    toy = study(runs=1, steps=80, seconds=0.1, every=1000)
    toy.start("--until", "train")
    toy.wait("training", toy.started)
    toy.controllers[0].kill()
    second = toy.start("--until", "train")
    toy.wait_for("found again as")
    os.killpg(second.pid, signal.SIGINT)
    begin = time.monotonic()
    toy.wait("stop", lambda: toy.history()[-1][2] == "stop", 10)
    assert time.monotonic() - begin < 10
    assert second.wait(20) != 0
    assert toy.run("--until", "train") == 0
    toy.check()
    verbs = [event[2] for event in toy.history()]
    assert verbs == ["start", "stop", "start", "end"]
