"""Training steps against the plain reference: tokens/s and peak memory, in turns, as ratios.

    python benchmarks/train.py [--shape cpu|44m|demo] [--variants engine,engine:2,compiled]

Each variant is a process of its own, on one thread; `engine:2` has two. They take turns, one batch
of steps each a round, so drift of the machine falls on all alike; a ratio is taken within a round,
and its median and quartiles over rounds are shown. Memory is the peak of resident memory during the
steps above what the process held after its imports. The reference is `tests/reference_model.py`:
eager, float32, explicit attention head by head, full logits, and `torch.optim.AdamW`; dropout is 0,
since it has none. `batched` is the same with all heads at once. Ratios, those
of two threads too, are to the reference on one; the engine has its allocator keep memory between
steps (`training/memory.py`), the reference has what Python comes with.

`--against release --dropout 0.1` compares with the step of the paper's release (`release.py`) by
processor time, dropout where the release has it. Its numbers below 1e-38 are 0, as the engine's
are; `release-gradual` leaves them, as PyTorch does unless told, which some processors take a
hundred times as long for.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import rows

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "src")]

from blindspot.config.spec import RunSpec  # noqa: E402

Step = Callable[[Any, int], None]

SHAPES = {
    "cpu": {"d_model": 256, "layers": 4, "heads": 8, "vocab_size": 8192, "context": 256},
    "44m": {"d_model": 512, "layers": 8, "heads": 8, "vocab_size": 20000, "context": 256},
    "demo": {"d_model": 64, "layers": 1, "heads": 2, "vocab_size": 512, "context": 64},
}
BATCH = {"cpu": 4, "44m": 8, "demo": 4}
VARIANTS = (
    "reference",
    "batched",
    "release",
    "release-gradual",
    "engine",
    "recompute",
    "compiled",
    "bf16",
)
COLUMNS = (
    "shape",
    "variant",
    "threads",
    "tokens_per_s",
    "ratio",
    "ratio_q25",
    "ratio_q75",
    "peak_mib",
    "memory_ratio",
    "warmup_s",
)


def spec_of(shape: str, variant: str, dropout: float = 0.0) -> RunSpec:
    places = ["embedding", "attention", "mlp-output"]
    return RunSpec.model_validate(
        {
            "data": {},
            "windows": {"length": SHAPES[shape]["context"], "stride": SHAPES[shape]["context"]},
            "model": SHAPES[shape]
            | {"loops": 4, "readout": "rms", "dropout": {"rate": dropout, "at": places}},
            "objective": {"loss": "per-loop"},
            "training": {"steps": 1, "precision": "bf16" if variant == "bf16" else "float32"},
            "batch": BATCH[shape],
            "seed": 1,
        }
    )


def reference_stepper(spec: RunSpec, variant: str) -> Step:
    """A plain training loop's step on the plain reference."""
    import torch

    from blindspot.lm.model import LoopedLM
    from reference_model import attention, batched_attention, total_loss

    attend = batched_attention if variant == "batched" else attention
    torch.manual_seed(spec.seed)
    p = {n: t.detach().requires_grad_() for n, t in LoopedLM(spec.model).named_parameters()}
    t = spec.training
    optimizer = torch.optim.AdamW(
        p.values(), lr=t.learning_rate, betas=t.betas, weight_decay=t.weight_decay
    )

    def step(ids: Any, _: int) -> None:
        total_loss(p, ids[:, :-1], ids[:, 1:], spec.model, spec.objective, attend).backward()
        torch.nn.utils.clip_grad_norm_(p.values(), t.clip)
        optimizer.step()
        optimizer.zero_grad()

    return step


def engine_stepper(spec: RunSpec, variant: str) -> Step:
    import torch

    from blindspot.config.execution import Execution
    from blindspot.training.engine import Engine

    how = Execution(recompute=variant == "recompute", compile=variant == "compiled")
    engine = Engine(spec, torch.device("cpu"), how)
    engine.model.train()

    def step(ids: Any, at: int) -> None:
        engine.step(ids, at)
        engine.harvest()

    return step


def stepper(spec: RunSpec, variant: str) -> Step:
    if variant.startswith("release"):
        import release
        import torch

        torch.set_flush_denormal(variant == "release")
        return release.stepper(spec)
    plain = variant in ("reference", "batched")
    return (reference_stepper if plain else engine_stepper)(spec, variant)


def resident(peak: bool = False) -> int:
    """Bytes of resident memory now, or at most so far."""
    import resource

    if peak:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def work(shape: str, variant: str, threads: int, warmup: int, dropout: float) -> None:
    """A process that takes as many steps as it is told, line by line, and says how long it took."""
    import torch

    import blindspot.training.engine  # noqa: F401

    torch.set_num_threads(threads)
    before = resident()
    spec = spec_of(shape, variant, dropout)
    started = time.perf_counter()
    step = stepper(spec, variant)
    batches = torch.randint(spec.model.vocab_size, (8, spec.batch, spec.model.context + 1))
    for at in range(warmup):
        step(batches[at], at)
    print(time.perf_counter() - started, flush=True)
    at = warmup
    for line in sys.stdin:
        started, used = time.perf_counter(), time.process_time()
        for _ in range(int(line)):
            step(batches[at % 8], at)
            at += 1
        took = time.perf_counter() - started, time.process_time() - used
        print(*took, resident(peak=True) - before, flush=True)


def measure(
    shape: str, variants: list[str], warmup: int, rounds: int, steps: int, dropout: float = 0.0
) -> list[list[Any]]:
    """Rows of the table for each variant; ratios are to the first, by processor time if that is
    the release's."""
    start = [sys.executable, __file__, "--shape", shape, "--warmup", str(warmup)]
    start += ["--dropout", str(dropout)]
    by_processor = variants[0].startswith("release")
    threads = {v: v.partition(":")[2] or "1" for v in variants}
    workers, first = {}, {}
    for v in variants:
        workers[v] = subprocess.Popen(
            [*start, "--worker", v.partition(":")[0], "--threads", threads[v]],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": threads[v]},
        )
        first[v] = float(workers[v].stdout.readline())
    seconds = {v: [] for v in variants}
    peak = {}
    for number in range(rounds):
        order = variants if number % 2 == 0 else variants[::-1]
        for v in order:
            print(steps, file=workers[v].stdin, flush=True)
            wall, used, most = workers[v].stdout.readline().split()
            seconds[v].append(float(used if by_processor else wall))
            peak[v] = int(most)
    for worker in workers.values():
        worker.stdin.close()
        worker.wait()
    tokens = steps * BATCH[shape] * SHAPES[shape]["context"]
    found = []
    for v in variants:
        ratios = np.array(seconds[variants[0]]) / np.array(seconds[v])
        low, middle, high = np.quantile(ratios, [0.25, 0.5, 0.75])
        found.append(
            [shape, v.partition(":")[0], threads[v], round(tokens / np.median(seconds[v]))]
            + [f"{x:.3g}" for x in (middle, low, high)]
            + [round(peak[v] / 2**20), f"{peak[v] / peak[variants[0]]:.2f}", f"{first[v]:.1f}"]
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=SHAPES, default="cpu")
    parser.add_argument("--variants", default="engine,recompute")
    parser.add_argument("--against", choices=VARIANTS, default="reference")
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--warmup", type=int, default=2, help="steps before the first round")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--worker", choices=VARIANTS, help=argparse.SUPPRESS)
    parser.add_argument("--threads", type=int, default=1, help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.worker:
        return work(a.shape, a.worker, a.threads, a.warmup, a.dropout)
    variants = [a.against, *a.variants.split(",")]
    if unknown := {v.partition(":")[0] for v in variants} - set(VARIANTS):
        parser.error(f"unknown variants: {', '.join(unknown)}; there are {', '.join(VARIANTS)}")
    found = measure(a.shape, variants, a.warmup, a.rounds, a.steps, a.dropout)
    rows.show(COLUMNS, found)
    if a.out:
        rows.keep(a.out, COLUMNS, found)
    return None


if __name__ == "__main__":
    main()
