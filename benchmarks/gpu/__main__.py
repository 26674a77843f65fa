"""Runs the sections one after the other, each in a process of its own and in its share of the time.

A section that fails, hangs or takes the GPU's context down with it costs the others nothing: what
it had written stays, what became of it is noted, and the time it left goes to those that follow.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from blindspot.errors import BlindspotError
from blindspot.files import write_json
from gpu import report

#: Sections in their order, and their shares of the time that is left.
SHARES = {"check": 15, "speed": 44, "frontier": 4, "cells": 37}
#: Seconds kept for the report; and between a section's own end and its being killed.
REPORT, GRACE = 6.0, 15.0
#: Seconds after which a section that was told to end is told again.
AGAIN = 2.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="gpu.sh", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for what comes out")
    parser.add_argument("--tokens", type=Path, help="token files to train on (docs/gpu.md)")
    parser.add_argument("--minutes", type=float, default=10.0, help="it ends within them")
    parser.add_argument("--tiny", action="store_true", help="toy sizes, on the CPU: a test")
    parser.add_argument("--section", choices=SHARES, help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, help=argparse.SUPPRESS)
    given = parser.parse_args()
    try:
        return section(given) if given.section else whole(given)
    except BlindspotError as error:
        print(f"gpu.sh: {error}", file=sys.stderr)
        return 2


def whole(given: argparse.Namespace) -> int:
    """All sections; returns 1 when one failed or a result is not correct."""
    start = time.monotonic()
    end = start + 60 * given.minutes - REPORT
    require(given)
    given.out.mkdir(parents=True, exist_ok=True)
    record: dict[str, Any] = {"arguments": sys.argv[1:], **report.provenance(given)}
    record["sections"] = {}
    keep(given.out, record, start)
    signal.signal(signal.SIGTERM, _interrupt)
    shares = dict(SHARES)
    try:
        for name in SHARES:
            left = end - time.monotonic()
            seconds = left * shares[name] / sum(shares.values())
            del shares[name]
            if name == "cells" and given.tokens is None:
                record["sections"][name] = {"outcome": "left out: no --tokens"}
                continue
            # The last section's grace comes out of its own share.
            grace = GRACE if shares else min(GRACE, seconds / 4)
            seconds -= 0 if shares else grace
            record["sections"][name] = child(given, name, seconds, grace)
            keep(given.out, record, start)
    except KeyboardInterrupt:
        record["outcome"] = "stopped from outside"
    text, right = keep(given.out, record, start)
    print(text)
    ended = [s["outcome"] for s in record["sections"].values()]
    failed = any(outcome.startswith(("failed", "killed")) for outcome in ended)
    return 0 if right and not failed and "outcome" not in record else 1


def keep(out: Path, record: dict[str, Any], start: float) -> tuple[str, bool]:
    """Write `gpu.json` and `summary.md` as things stand: who is killed later has them."""
    record["seconds"] = round(time.monotonic() - start, 1)
    write_json(out / "gpu.json", record)
    return report.summary(out, record)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def require(given: argparse.Namespace) -> None:
    """Refuse at once what would fail in the middle."""
    import torch

    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if version < (2, 11):
        raise BlindspotError(f"torch {torch.__version__}: 2.11 or later is needed")
    if not given.tiny and not torch.cuda.is_available():
        raise BlindspotError("no GPU that torch can use; --tiny runs the same path on the CPU")
    if given.tokens is not None and not (given.tokens / "tokens.json").is_file():
        raise BlindspotError(
            f"--tokens {given.tokens}: no tokens.json in it; docs/gpu.md says how to make one"
        )


def child(given: argparse.Namespace, name: str, seconds: float, grace: float) -> dict[str, Any]:
    """Run one section; its output goes to a log, the outcome is returned."""
    print(f"{name}: at most {seconds:.0f} s ...", end=" ", flush=True)
    options = ["--out", given.out, "--minutes", given.minutes, "--section", name]
    options += ["--seconds", round(seconds, 1)]
    options += ["--tokens", given.tokens] if given.tokens else []
    options += ["--tiny"] if given.tiny else []
    log, start = given.out / f"log-{name}.txt", time.monotonic()
    with open(log, "w", encoding="utf-8") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "gpu", *map(str, options)],
            stdout=file,
            stderr=file,
            # The compiler has processes of its own, which must not outlive it.
            start_new_session=True,
        )
        try:
            code = process.wait(seconds + grace)
            outcome = "done" if code == 0 else f"failed: exit code {code}, see {log.name}"
        except subprocess.TimeoutExpired:
            outcome = f"killed: it did not end by itself, see {log.name}"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    print(f"{outcome} ({time.monotonic() - start:.0f} s)", flush=True)
    return {"outcome": outcome, "seconds": round(time.monotonic() - start, 1)}


def section(given: argparse.Namespace) -> NoReturn:
    """One section, in this process, which it ends."""
    deadline = time.monotonic() + given.seconds

    import torch

    from gpu import cells, check, frontier, speed
    from gpu.bench import Bench, OutOfTime
    from gpu.plan import FULL, TINY

    def over(_number: int, _frame: FrameType | None) -> None:
        raise OutOfTime

    # Compiling may take minutes and asks no one: it is interrupted. More than once, since what is
    # raised inside an import or a callback of the garbage collector may be dropped.
    signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, max(0.1, deadline - time.monotonic()), AGAIN)
    if given.tiny:
        torch.set_num_threads(1)
    device = torch.device("cpu" if given.tiny else "cuda")
    bench = Bench(given.section, TINY if given.tiny else FULL, device, given.out, deadline)
    try:
        if given.section == "cells":
            cells.run(bench, given.tokens)
        else:
            {"check": check, "speed": speed, "frontier": frontier}[given.section].run(bench)
    except OutOfTime:
        print("the section's time is over", flush=True)
    signal.setitimer(signal.ITIMER_REAL, 0)
    sys.stdout.flush()
    # Everything is on disk. A compiler that was interrupted may be waited for at a usual exit.
    os._exit(1 if any(row[3].startswith("failed") for row in bench.notes.rows) else 0)


if __name__ == "__main__":
    sys.exit(main())
