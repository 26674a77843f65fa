"""A study of the toy trainer, run by Snakemake in a folder of its own, and questions about it."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

TOY = Path(__file__).parent / "toy"


def shim(folder: Path, command: str, script: str) -> None:
    """Put a stand-in for a command first in PATH; in the script, $REAL is the command itself."""
    path = folder / "bin" / command
    path.parent.mkdir(parents=True, exist_ok=True)
    real = f"REAL=$(PATH=${{PATH#{path.parent}:}} command -v {command})"
    path.write_text(f"#!/bin/bash\n{real}\n{script}\n")
    path.chmod(0o755)


class Study:
    """`toy` are settings of the toy's Snakefile: runs, steps, seconds, gpu, runtime and so on."""

    def __init__(self, folder: Path, env: dict[str, str], cluster: str, **toy: object) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.toy = folder, toy
        self.executor = ["--executor", "submitit", "--submitit-cluster", cluster]
        path = os.pathsep.join([str(folder / "bin"), str(Path(sys.executable).parent), env["PATH"]])
        self.env = env | {"PATH": path, "OMP_NUM_THREADS": "1"}
        self.controllers: list[subprocess.Popen[str]] = []
        #: Seconds between questions to squeue; tests have no time for the real half minute.
        self.poll = 3

    def start(self, *arguments: str, snakefile: Path = TOY / "Snakefile") -> subprocess.Popen[str]:
        """A controller, in a process group of its own."""
        command = ["nice", sys.executable, "-m", "snakemake", "-s", str(snakefile)]
        command += [*self.executor, "--jobs", "8"]
        command += ["--rerun-incomplete", "--nolock", "--latency-wait", "5", "--keep-going"]
        if "submitit" in self.executor:
            command += ["--submitit-poll-seconds", str(self.poll)]
        config = [f"{key}={value}" for key, value in self.toy.items()]
        with (self.folder / "controller.log").open("a") as log:
            process = subprocess.Popen(
                [*command, *arguments, "--config", *config],
                cwd=self.folder,
                env=self.env,
                stdout=log,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        self.controllers.append(process)
        return process

    def run(self, *arguments: str, seconds: float = 240, **options: Path) -> int:
        """A controller to its end; its exit status."""
        return self.start(*arguments, **options).wait(seconds)

    def end(self) -> None:
        """Kill what still runs of it on this side."""
        for process in self.controllers:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    @property
    def log(self) -> str:
        """What the controllers have said."""
        path = self.folder / "controller.log"
        return path.read_text() if path.exists() else ""

    def wait_for(self, text: str, seconds: float = 90) -> None:
        """Until a controller has said that."""
        self.wait(text, lambda: text in self.log, seconds)

    def wait(self, what: str, condition: object, seconds: float = 90) -> None:
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                raise TimeoutError(f"{what}: not within {seconds} s\n{self.log[-3000:]}")
            time.sleep(0.1)

    def name(self, number: int = 0) -> str:
        return f"44m/rms{'%A' if self.toy.get('odd') else ''}/seed{number}"

    def result(self, number: int = 0) -> dict[str, object] | None:
        path = self.folder / "results" / f"{self.name(number)}.json"
        return json.loads(path.read_text()) if path.exists() else None

    def history(self, number: int = 0) -> list[list[str]]:
        """What the trainers of a run did: job, pid, verb, step and more."""
        path = self.folder / "work/runs" / self.name(number) / "history"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line.split()[1:] for line in lines]

    def started(self, number: int = 0, times: int = 1) -> bool:
        return sum(event[2] == "start" for event in self.history(number)) >= times

    def logs(self) -> list[Path]:
        return sorted(self.folder.glob("work/submitit/*/*_log.out"))

    def check(self) -> None:
        """All runs have the weights of uninterrupted training, and never had two trainers."""
        for number in range(int(str(self.toy.get("runs", 2)))):
            weights = f"work/runs/{self.name(number)}"
            for _ in range(int(str(self.toy["steps"]))):
                weights = hashlib.sha256(weights.encode()).hexdigest()
            result = self.result(number)
            assert result is not None, self.log[-3000:]
            assert result["weights"] == weights
            assert "refused" not in {event[2] for event in self.history(number)}
