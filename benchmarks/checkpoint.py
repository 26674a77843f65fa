"""What a checkpoint costs: seconds to save and to read, and the share of a run that saves every
five minutes.

    python benchmarks/checkpoint.py [--size 44m] [--repeats 3] [--folder .] [--out checkpoint.csv]

The real thing: parameters and two moments of config.yaml's size in float32, SHA-256, safetensors,
fsync and rename, on the disk of `--folder`. Training is held while the state is copied in memory;
the rest is written meanwhile. Shares are of five minutes.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import rows

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src")]
COLUMNS = ("size", "mib", "held_s", "save_s", "save_s_max", "read_s", "held_share", "save_share")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", default="44m")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path())
    parser.add_argument("--out", type=Path)
    a = parser.parse_args()

    import torch

    from blindspot import tensorfile
    from blindspot.config.study import Study
    from blindspot.training import checkpoint
    from blindspot.training.engine import Engine

    torch.set_num_threads(1)
    runs = Study.load(ROOT / "config.yaml").runs
    spec = next(r.spec for r in runs if (r.size, r.cell) == (a.size, "perloop-rms"))
    engine = Engine(spec, torch.device("cpu"))
    tensors = checkpoint.training_state(engine.model, engine.optimizer)
    size = sum(t.numel() * t.element_size() for t in tensors.values()) / 2**20
    held, saves, reads = [], [], []
    with tempfile.TemporaryDirectory(dir=a.folder) as folder:
        for step in range(a.repeats):
            writer = checkpoint.Writer(Path(folder))
            started = time.perf_counter()
            writer.start(step, tensors, {"run": spec.hash, "step": step})
            held.append(time.perf_counter() - started)
            writer.wait()
            saves.append(time.perf_counter() - started)
            started = time.perf_counter()
            tensorfile.read(checkpoint.path_of(Path(folder), step))
            reads.append(time.perf_counter() - started)
    save = float(np.median(saves))
    copy = float(np.median(held))
    row = [
        a.size,
        round(size),
        f"{copy:.2f}",
        f"{save:.2f}",
        f"{max(saves):.2f}",
        f"{np.median(reads):.2f}",
    ]
    row += [f"{copy / 300:.2%}", f"{save / 300:.2%}"]
    rows.show(COLUMNS, [row])
    if a.out:
        rows.keep(a.out, COLUMNS, [row])


if __name__ == "__main__":
    main()
