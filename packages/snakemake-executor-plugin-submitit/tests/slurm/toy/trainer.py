"""A trainer of nothing: a chain of hashes for weights, and the manners of the real one.

It saves every `--every` steps, saves and exits with 85 after the step at hand on SIGTERM or
SIGUSR2, exits with 75 if another process trains this run, and goes on from what it saved.
"""

import argparse
import fcntl
import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--state", type=Path, required=True)
parser.add_argument("--steps", type=int, required=True)
parser.add_argument("--seconds", type=float, default=0.1)
parser.add_argument("--every", type=int, default=10)
args = parser.parse_args()

stopped = []
for number in (signal.SIGTERM, signal.SIGUSR2):
    signal.signal(number, lambda number, _: stopped.append(number))


def note(text: str) -> None:
    with open(args.state / "history", "a") as history:
        job = os.environ.get("SLURM_JOB_ID", "-")
        history.write(f"{time.time():.3f} {job} {os.getpid()} {text}\n")


args.state.mkdir(parents=True, exist_ok=True)
lock = open(args.state / "lock", "a")  # noqa: SIM115
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    note("refused")
    sys.exit(75)

checkpoint = args.state / "checkpoint.json"
step, weights = json.loads(checkpoint.read_text()) if checkpoint.exists() else (0, str(args.state))


def save() -> None:
    temporary = checkpoint.with_suffix(".tmp")
    temporary.write_text(json.dumps([step, weights]))
    temporary.replace(checkpoint)


note(f"start {step} {os.environ.get('SUBMITIT_RESTARTS', '-')}")
while step < args.steps:
    time.sleep(args.seconds)
    weights = hashlib.sha256(weights.encode()).hexdigest()
    step += 1
    print(f"step {step}", flush=True)
    if step % args.every == 0:
        save()
    if stopped:
        save()
        note(f"stop {step} {signal.Signals(stopped[0]).name}")
        sys.exit(85)
save()
note(f"end {step}")
seen = ("CUDA_VISIBLE_DEVICES", "HF_HUB_OFFLINE", "SUBMITIT_RESTARTS")
result = {"weights": weights, "python": sys.executable, "cpus": len(os.sched_getaffinity(0))}
args.out.write_text(json.dumps(result | {name: os.environ.get(name) for name in seen}))
