"""What `blindspot.watch` costs of a training step: its own time beside the step's.

    python benchmarks/watch.py [--shape cpu|demo] [--steps 100]

A plain training loop with AdamW on one thread; `share_percent` is for a look every `every` steps,
exits too. The hooks and `step` are timed inside (CPU time of this process), so the share does not
drown in the machine's noise; `look_ms` is a step that is looked at, `idle_us` one that is not.
"""

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import rows
import torch
from torch.nn import functional as F
from train import BATCH, spec_of

from blindspot.lm.model import LoopedLM
from blindspot.watch import Watch

#: The default, which the share is of; and how often is looked here, so that there is what to time.
EVERY, LOOK_HERE = 100, 10
COLUMNS = ("shape", "every", "steps", "step_ms", "look_ms", "idle_us", "share_percent")


class Timed(Watch):
    """A watch that counts the seconds it takes."""

    seconds = 0.0

    def _begin(self, *args: Any) -> None:
        self._timed(super()._begin, *args)

    def _end(self, *args: Any) -> None:
        self._timed(super()._end, *args)

    def _on_output(self, *args: Any) -> None:
        self._timed(super()._on_output, *args)

    def step(self, step: int) -> Any:
        return self._timed(super().step, step)

    def _timed(self, call: Any, *args: Any) -> Any:
        started = time.process_time()
        found = call(*args)
        self.seconds += time.process_time() - started
        return found


def measure(shape: str, steps: int) -> list[Any]:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    spec = spec_of(shape, "engine").model
    model = LoopedLM(spec).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    ids = torch.randint(spec.vocab_size, (BATCH[shape], spec.context + 1))
    whole, own, looked = [], [], []
    watch = Timed(
        model,
        model.blocks[-1],
        every=LOOK_HERE,
        read=model.logits,
        log=lambda step, seen: looked.append(step),
        on_alarm=lambda step, message: None,
    )
    with watch:
        for step in range(steps):
            before, started = watch.seconds, time.process_time()
            states = model(ids[:, :-1])
            logits = model.logits(states[-1], spec.loops)
            F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()).backward()
            optimizer.step()
            optimizer.zero_grad()
            watch.step(step)
            whole.append(time.process_time() - started)
            own.append(watch.seconds - before)
    # The first look warms up.
    look = np.median([own[step] for step in looked[1:]])
    idle = np.median([t for step, t in enumerate(own) if step not in looked])
    plain = np.median(np.array(whole) - own)
    share = (look + (EVERY - 1) * idle) / EVERY / plain
    numbers = f"{plain * 1e3:.1f}", f"{look * 1e3:.2f}", f"{idle * 1e6:.0f}", f"{share * 100:.3f}"
    return [shape, EVERY, steps, *numbers]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=("cpu", "demo"), action="append")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--out", type=Path, help="CSV to add to")
    options = parser.parse_args()
    found = [measure(shape, options.steps) for shape in options.shape or ("cpu", "demo")]
    rows.show(COLUMNS, found)
    if options.out:
        rows.keep(options.out, COLUMNS, found)


if __name__ == "__main__":
    main()
