"""All depths of one pass against K separate passes, and both against the bound by FLOPs.

    python benchmarks/evaluate.py [--rounds 10] [--threads 1] [--out evaluate.csv]

A pass of k loops with one head costs k + h, h the head's cost in loops; K = 4 passes of 1 to 4
loops cost 10 + 4 h, one pass with a head at each depth 4 + 4 h. h is once taken from FLOPs and once
timed (a softmax over the vocabulary has few FLOPs, not little time). The two ways take turns; the
ratio is taken within a round.
"""

import argparse
import sys
import time
from pathlib import Path

import numpy as np
import rows

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src")]
COLUMNS = (
    "shape",
    "threads",
    "ratio",
    "ratio_q25",
    "ratio_q75",
    "flop_bound",
    "share_of_flop_bound",
    "timed_bound",
    "share_of_timed_bound",
)
SHAPES = {
    "cpu": {"d_model": 256, "layers": 4, "heads": 4, "vocab_size": 8192, "context": 256},
    "44m": {"d_model": 512, "layers": 8, "heads": 8, "vocab_size": 20000, "context": 256},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=SHAPES, default="cpu")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path)
    a = parser.parse_args()

    import torch

    from blindspot.config.flops import forward_per_token
    from blindspot.config.spec import ModelSpec
    from blindspot.lm.model import LoopedLM
    from blindspot.lm.objective import cross_entropy

    torch.set_num_threads(a.threads)
    spec = ModelSpec.model_validate(SHAPES[a.shape] | {"loops": 4, "readout": "rms"})
    model = LoopedLM(spec).eval()
    ids = torch.randint(spec.vocab_size, (4, spec.context + 1))
    inputs, targets = ids[:, :-1], ids[:, 1:]

    @torch.no_grad()
    def together() -> list[float]:
        states = model(inputs)
        return [cross_entropy(model, states[k], k, targets).item() for k in range(1, 5)]

    @torch.no_grad()
    def separate() -> list[float]:
        found = []
        for k in range(1, 5):
            found.append(cross_entropy(model, model(inputs, loops=k)[k], k, targets).item())
        return found

    assert together() == separate(), "both ways give the same losses"
    ratios, costs = [], []
    for _ in range(a.rounds):
        seconds = []
        for way in (together, separate):
            started = time.perf_counter()
            way()
            seconds.append(time.perf_counter() - started)
        ratios.append(seconds[1] / seconds[0])
        with torch.no_grad():
            started = time.perf_counter()
            state = model(inputs, loops=1)[1]
            between = time.perf_counter()
            cross_entropy(model, state, 1, targets)
            costs.append((time.perf_counter() - between) / (between - started))
    loop = forward_per_token(spec, 1, heads=0)
    head = (forward_per_token(spec, 1, heads=1) - loop) / loop
    bound = (10 + 4 * head) / (4 + 4 * head)
    h = float(np.median(costs))
    timed = (10 + 4 * h) / (4 + 4 * h)
    low, middle, high = np.quantile(ratios, [0.25, 0.5, 0.75])
    values = (middle, low, high, bound, middle / bound, timed, middle / timed)
    row = [a.shape, a.threads, *(f"{x:.3f}" for x in values)]
    rows.show(COLUMNS, [row])
    if a.out:
        rows.keep(a.out, COLUMNS, [row])


if __name__ == "__main__":
    main()
