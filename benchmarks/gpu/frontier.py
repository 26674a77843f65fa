"""Section `frontier`: forward passes of K = 1..4 loops with a head at the exit, both sizes.

`frontier.csv` is the workflow's own throughput table (`measure/throughput.py`): eager,
bf16 autocast, architectures and depths in turn; architectures are named by size and readout.
"""

from blindspot.config.spec import Throughput
from blindspot.declared.throughput import THROUGHPUT
from blindspot.measure import throughput
from gpu.bench import Bench


def run(bench: Bench) -> None:
    sheet = bench.sheet("frontier", THROUGHPUT.header)
    plan = bench.plan
    settings = Throughput(batch=plan.forward_batch, warmup=5, repeats=plan.forwards)
    for size in plan.sizes:
        with bench.case(size):
            cells = ("perloop-rms", "perloop-raw")
            models = {f"{size}-{plan.model(size, c).readout}": plan.model(size, c) for c in cells}
            sheet.add(*throughput.measure(models, settings, "bf16", bench.device))
