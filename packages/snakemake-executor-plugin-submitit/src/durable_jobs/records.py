"""What a controller leaves behind for the next one, should it die: links and folders.

- `jobs/<name>.<hash>` links to the submission of a job: `<batch>/<index>.pkl`. Written first.
- `<batch>/job_id` is the scheduler's answer.
- `<batch>/<index>.cancel` says that the user does not want this job any more.
- `<batch>/<job id>_*` are submitit's logs and results.
"""

import fcntl
import pickle
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from durable_jobs import ClusterError


def lock(path: Path, wait: bool = False) -> Any:
    """The open file, locked until the last process that has it open ends; None if it is taken.

    Raises ClusterError where the file system has no locks. (A library's locks are not inherited; a
    runner and an sbatch must hold theirs when this process is gone.)
    """
    handle = path.open("a")
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        return handle
    except BlockingIOError:
        return handle.close()
    except OSError as error:
        handle.close()
        raise ClusterError(
            f"{path}: its file system can't lock files ({error.strerror}), so two controllers "
            f"could meet there; mount it with locks, or set submitit-folder to another file system"
        ) from None


@dataclass
class Record:
    """A job, and where it was submitted: the `index`-th of a batch, in `folder`."""

    link: Path
    folder: Path = Path()
    index: int = 0
    #: When the scheduler was first heard to say that it has ended, although there is no result.
    ended: float | None = None
    answer: str = ""

    @property
    def name(self) -> str:
        return self.link.stem

    @property
    def job_id(self) -> str:
        """The scheduler's id, ending in the index; starts with "_" until that has answered."""
        with suppress(FileNotFoundError):
            self.answer = self.answer or (self.folder / "job_id").read_text()
        return f"{self.answer}_{self.index}"

    def set_job_id(self, answer: str) -> None:
        """Write down the scheduler's answer, for all jobs of this batch."""
        temporary = self.folder / ".job_id"
        temporary.write_text(answer)
        temporary.replace(self.folder / "job_id")

    @property
    def log(self) -> Path:
        return self.folder / f"{self.job_id}_0_log.out"

    @property
    def result(self) -> Path:
        return self.folder / f"{self.job_id}_0_result.pkl"

    @property
    def cancelled(self) -> Path:
        return self.folder / f"{self.index}.cancel"

    @property
    def usage(self) -> Path:
        return self.folder / f"{self.index}.usage.json"

    @property
    def nodes(self) -> str:
        """Where the last attempt ran, as its log says; "" where it does not."""
        with suppress(OSError):
            text = self.log.read_text(encoding="utf-8", errors="replace")
            if found := re.findall(r"^== attempt \d+ of .*: (\S+), \d{4}-", text, re.MULTILINE):
                return str(found[-1])
        return ""

    def save(self) -> None:
        temporary = self.link.with_name(f".{self.link.name}")
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(Path("..", self.folder.name, f"{self.index}.pkl"))
        temporary.replace(self.link)

    def failure(self) -> str | None:
        """Why the job failed, "" if it did not, None while it has no (whole) result."""
        with suppress(OSError, EOFError, pickle.UnpicklingError):
            verdict, value = pickle.loads(self.result.read_bytes())
            last = str(value).strip().splitlines()[-1]
            return "" if verdict == "success" else last.partition(": ")[2] or last
        return None


def submitted(root: Path) -> dict[Path, Record]:
    """All jobs that were submitted, and that no controller has seen ending, by their link."""
    found = {}
    for link in (root / "jobs").iterdir():
        with suppress(FileNotFoundError):  # its end may be noticed in this moment
            to = link.readlink()
            found[link] = Record(link, root / to.parent.name, int(to.stem))
    return {link: record for link, record in found.items() if not link.name.startswith(".")}


def forget(root: Path, days: int) -> None:
    """Delete batches that nothing has changed for so many days, unless a job of them is waited
    for. To be called under the submission lock."""
    used = {record.folder for record in submitted(root).values()}
    for folder in set(root.glob("[0-9]*-[0-9]*-*")) - used:
        newest = max(path.stat().st_mtime for path in (folder, *folder.iterdir()))
        if time.time() - newest > days * 86400:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def submission_lock(root: Path) -> Iterator[int]:
    """One controller submits at a time. An sbatch inherits the descriptor, so that the lock
    outlives a controller which is killed while its submission is under way."""
    with lock(root / "submit.lock", wait=True) as handle:
        yield handle.fileno()
