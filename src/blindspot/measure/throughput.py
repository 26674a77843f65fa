"""Teacher-forced throughput at every depth, measured; one session times a whole size.

What is timed is a forward pass of k loops with one head at the exit, at the training precision,
on random tokens and fresh weights: the time of dense products does not depend on their values, so
cells that differ in loss alone share a row, and no trained weights are needed. Architectures and
depths take turns in a shuffled order within each repeat, so drift of the machine falls on all
alike. The clock starts and stops with the device idle.
"""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from blindspot import provenance
from blindspot.config.flops import forward_per_token
from blindspot.config.revisions import THROUGHPUT_REVISION
from blindspot.config.spec import ModelSpec, Throughput
from blindspot.declared.throughput import THROUGHPUT
from blindspot.files import sha256_text, to_csv, write_record, write_text
from blindspot.lm.device import autocast, resolve
from blindspot.lm.model import LoopedLM


def write(value: Mapping[str, Any], out: Path, device: str, threads: int) -> None:
    """Time what `value` names (architectures, settings, precision) and write `out`, a CSV.

    Its record, `out` with the ending .json, pins it by SHA-256. The record is written first: a
    table without a record is damaged, a record without its table is only unfinished.
    """
    torch.set_num_threads(threads)
    started, chosen = provenance.now(), resolve(device)
    models = {label: ModelSpec.model_validate(m) for label, m in value["architectures"].items()}
    settings = Throughput.model_validate(value["settings"])
    text = to_csv(THROUGHPUT.header, measure(models, settings, value["precision"], chosen))
    write_record(
        out.with_suffix(".json"),
        {
            "revision": THROUGHPUT_REVISION,
            "spec": dict(value),
            "files": {out.name: sha256_text(text)},
            "provenance": provenance.collect()
            | {
                "device": provenance.device_name(chosen),
                "threads": threads,
                "precision": value["precision"],
                "started": started,
                "finished": provenance.now(),
            },
        },
    )
    write_text(out, text)


def measure(
    specs: Mapping[str, ModelSpec],
    settings: Throughput,
    precision: str,
    device: torch.device,
    synchronize: Callable[[], None] | None = None,
) -> list[list]:
    """Rows of the throughput table for each architecture at k = 1..K."""
    wait = synchronize or _waiter(device)
    models = {label: LoopedLM(spec).to(device).eval() for label, spec in specs.items()}
    cases = [(label, k) for label, spec in specs.items() for k in range(1, spec.loops + 1)]
    seconds: dict[tuple[str, int], list[float]] = {case: [] for case in cases}
    order = np.random.default_rng(0)
    any_spec = next(iter(specs.values()))
    tokens = torch.randint(any_spec.vocab_size, (settings.batch, any_spec.context), device=device)
    with torch.inference_mode(), autocast(precision, device):
        for repeat in range(settings.warmup + settings.repeats):
            for at in order.permutation(len(cases)):
                label, k = cases[at]
                wait()
                start = time.perf_counter()
                states = models[label](tokens, loops=k)
                models[label].logits(states[-1], k)
                wait()
                if repeat >= settings.warmup:
                    seconds[label, k].append(time.perf_counter() - start)
    rows = []
    for (label, k), times in seconds.items():
        slow, median, fast = np.quantile(tokens.numel() / np.array(times), [0.25, 0.5, 0.75])
        spec = specs[label]
        rows.append(
            [label, k, settings.batch, spec.context, precision, provenance.device_name(device)]
            + [torch.get_num_threads(), settings.repeats]
            + [f"{x:.6g}" for x in (median, slow, fast)]
            + [f"{forward_per_token(spec, k):.10g}"]
        )
    return rows


def _waiter(device: torch.device) -> Callable[[], None]:
    if device.type == "cuda":
        return lambda: torch.cuda.synchronize(device)
    return lambda: None
