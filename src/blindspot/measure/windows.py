"""The test split in blocks of 8 windows: sums of NLL at each trained exit, for a bootstrap.

Neighbouring tokens are alike, so blocks are drawn, not tokens (collect/bootstrap.py). The windows
are those of protocol `full` (exits.py), each target counts once.
"""

import numpy as np
import torch

from blindspot.data.windows import scoring
from blindspot.declared.windows import BLOCK
from blindspot.measure.subject import Row, Subject, number, token_nll

SPLIT = "test"


@torch.no_grad()
def measure(subject: Subject) -> dict[str, list[Row]]:
    """`windows.csv`."""
    stream, loops = subject.tokens.split(SPLIT), subject.loops
    full = scoring(len(stream), subject.spec.windows.length, subject.settings.min_context)
    starts, first = full[:, 0], full[:, 1] - full[:, 0] - 1
    length = int(full[0, 2] - full[0, 0]) - 1
    windows = np.asarray(stream[starts[:, None] + np.arange(length + 1)], dtype=np.int64)
    nll, done = np.zeros((len(windows), loops)), 0
    for inputs, targets in subject.chunks(windows):
        here = slice(done, done + len(inputs))
        done = here.stop
        counted = torch.from_numpy(np.arange(length) >= first[here, None]).to(inputs.device)
        states = subject.model(inputs)
        for k in range(1, loops + 1):
            values = torch.zeros(counted.shape, dtype=torch.float64, device=inputs.device)
            scored = token_nll(subject.model, states[k][counted], k, targets[counted])
            values[counted] = scored.double()
            nll[here, k - 1] = values.sum(1).cpu().numpy()
    # First window of each block; the last block takes what is left.
    edges = np.arange(max(1, len(windows) // BLOCK)) * BLOCK
    sums, tokens = np.add.reduceat(nll, edges), np.add.reduceat(length - first, edges)
    sizes = np.diff(np.append(edges, len(windows)))
    table: list[Row] = [
        [SPLIT, block, k, int(sizes[block]), int(tokens[block]), number(sums[block, k - 1], 6)]
        for block in range(len(edges))
        for k in range(1, loops + 1)
    ]
    return {"windows": table}
