"""The long kill test: interruptions at random moments and places, over all cells, with dropout.

    python benchmarks/kills.py [--interruptions 200] [--seed 1] [--out kills.csv]

Each cell is trained once in peace and then, in processes that are really killed (SIGKILL, SIGTERM,
SIGUSR2), as often as needed; its weights and trajectory must be those of the run in peace, bit for
bit. Prints a line a cell; exits with 1 at the first difference. `tests/test_train_kills.py` is the
short version.
"""

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np
import rows

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "src")]

from killing import attempt, random_plan, server  # noqa: E402
from toys import CELLS  # noqa: E402
from training import assert_same_run, toy_job, toy_tokens  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--interruptions", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="one line more in this CSV file")
    a = parser.parse_args()
    context, rng = server(), np.random.default_rng(a.seed)
    share = -(-a.interruptions // len(CELLS))
    ends: Counter[str] = Counter()
    runs, started = 0, time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        tokens = toy_tokens(Path(folder))
        for cell in CELLS:
            whole = toy_job(tokens, Path(folder) / f"{cell}-whole", cell)
            begun = time.monotonic()
            assert attempt(context, whole) == 0
            usual, struck = time.monotonic() - begun, 0
            while struck < share:
                how = {"checkpoint_steps": int(rng.integers(1, 6))}
                job = toy_job(tokens, Path(folder) / f"{cell}-{runs}", cell, execution=how)
                code = 1
                while code != 0:
                    plan = random_plan(rng, usual) if struck < share else None
                    code = attempt(context, job, plan)
                    assert code in (0, 85, -9), (plan, code)
                    struck += code != 0
                    ends["finished" if code == 0 else "saved (85)" if code == 85 else "killed"] += 1
                assert_same_run(job, whole)
                runs += 1
            print(f"{cell}: {struck} interruptions, bit for bit the same", flush=True)
    row = {"interruptions": ends["killed"] + ends["saved (85)"], "killed": ends["killed"]}
    row |= {"saved": ends["saved (85)"], "runs": runs, "cells": len(CELLS), "different": 0}
    row |= {"seconds": round(time.monotonic() - started)}
    print(row)
    if a.out:
        rows.keep(a.out, list(row), [list(row.values())])


if __name__ == "__main__":
    main()
