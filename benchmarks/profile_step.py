"""Where the time of a training step goes: torch's profiler, by operation.

python benchmarks/profile_step.py [--shape cpu|44m|demo] [--variant engine|...] [--dropout 0.1]
"""

import argparse
import time

import torch
from torch.profiler import ProfilerActivity, profile
from train import SHAPES, VARIANTS, spec_of, stepper


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=SHAPES, default="cpu")
    parser.add_argument("--variant", choices=VARIANTS, default="engine")
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--rows", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    a = parser.parse_args()
    torch.set_num_threads(a.threads)
    spec = spec_of(a.shape, a.variant, a.dropout)
    step = stepper(spec, a.variant)
    ids = torch.randint(spec.model.vocab_size, (spec.batch, spec.model.context + 1))
    step(ids, 0)
    started = time.perf_counter()
    step(ids, 1)
    print(f"one step of {a.variant}, shape {a.shape}: {time.perf_counter() - started:.3f} s\n")
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        step(ids, 2)
    found = sorted(seen.key_averages(), key=lambda e: -e.self_cpu_time_total)
    total = sum(e.self_cpu_time_total for e in found)
    print("| operation | share | ms | calls |\n|---|---:|---:|---:|")
    for e in found[: a.rows]:
        share = e.self_cpu_time_total / total
        print(f"| `{e.key[:60]}` | {share:.1%} | {e.self_cpu_time_total / 1e3:.1f} | {e.count} |")


if __name__ == "__main__":
    main()
