"""Per-token norms of H_0 and of the state after every loop.

L2 over d (`l2_*`) and its mean as RMS (`rms_mean` = mean of |H| / sqrt(d)), over tokens of one
split. H_0 has a row of its own (k = 0): growth in loop 1 is not growth in loops 2..K.
"""

import numpy as np
import torch

from blindspot.model import LoopedLM

COLUMNS = (
    "split",
    "k",
    "tokens",
    "l2_mean",
    "l2_std",
    "l2_p50",
    "l2_p90",
    "l2_p99",
    "l2_p999",
    "l2_max",
    "rms_mean",
)


@torch.no_grad()
def token_norms(
    model: LoopedLM, stream: np.ndarray, loops: int, limit: int, size: int
) -> np.ndarray:
    """L2 norms (float32) of H_0..H_loops over the first `limit` tokens: shape (loops + 1, N).

    Windows do not overlap; `size` of them are read at a time.
    """
    length = min(model.spec.context, len(stream))
    n = max(1, min(limit, len(stream)) // length)
    windows = torch.from_numpy(stream[: n * length].astype(np.int64)).view(n, length)
    device = model.embedding.weight.device
    found = []
    for chunk in windows.split(size):
        states = model(chunk.to(device), loops=loops)
        norms = [torch.linalg.vector_norm(h.float(), dim=-1).flatten() for h in states]
        found.append(torch.stack(norms).cpu())
    return torch.cat(found, dim=1).numpy()


def rows(split: str, norms: np.ndarray, width: int) -> list[list]:
    """Rows of `norms.csv` from token norms (loops + 1, N), d = `width`."""
    table = []
    for k, values in enumerate(norms.astype(np.float64)):
        marks = np.quantile(values, [0.5, 0.9, 0.99, 0.999])
        numbers = [values.mean(), values.std(ddof=1) if len(values) > 1 else np.nan, *marks]
        numbers += [values.max(), values.mean() / np.sqrt(width)]
        table.append([split, k, values.size, *(f"{x:.9g}" for x in numbers)])
    return table
