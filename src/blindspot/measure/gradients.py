"""What the loss says about a state's scale: gradients with respect to H_k, split along H_k.

For each token, g is the gradient of the training objective with respect to H_k, times the number of
tokens, so that a token's own loss has weight 1 / (supervised depths). The objective is that of a
step with all K loops; a z-loss is not in it. Its parts are kept apart:

    source   ce        the cross-entropies
             penalty   the norm penalty
    path     immediate    of depth k itself: its own readout and loss (the visibility lemma's case)
             recurrence   of all trained losses at depths > k, through the loops after k

With a scale-invariant readout, the immediate ce does not see the scale. This holds in cells with a
penalty, too: there only the penalty sees it. The immediate ce is also measured at depths without a
loss of their own (in terminal cells; `trained` is false there, and the weight is 1), because it is
a property of the readout.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from blindspot.config.spec import Objective, Penalty
from blindspot.lm.model import LoopedLM
from blindspot.lm.objective import PENALTIES, supervised
from blindspot.lm.recurrence import Start
from blindspot.measure.subject import Row, Subject, number, token_nll

SPLIT = "validation"
#: Norm buckets of `gradient_eps.csv`: edges at 10^(i / 2).
BUCKETS_A_DECADE = 2
#: Tokens whose graph is held at a time.
CHUNK = 2048
#: Source, path, depth.
Key = tuple[str, str, int]
Numbers = NDArray[np.float64]


class Split(NamedTuple):
    """A gradient g compared with its state H, per token; each field has shape (N,) and the
    gradient's own precision."""

    cos: Tensor
    radial: Tensor
    size: Tensor


def measure(subject: Subject) -> dict[str, list[Row]]:
    """Both files."""
    rows = subject.sample(SPLIT, subject.settings.probe_tokens)
    objective, eps = subject.spec.objective, subject.spec.model.norm_eps
    found: dict[tuple[str, Key], list[Split]] = defaultdict(list)
    buckets: dict[int, list[Numbers]] = defaultdict(list)
    # The graph of a loop in float64 takes tens of megabytes per thousand tokens and layer.
    for inputs, targets in subject.chunks(rows, CHUNK):
        for dtype, model in (("float64", subject.double), ("float32", subject.model)):
            with torch.no_grad():
                states = model(inputs)
            for key, g in gradients(model, states, targets, objective):
                parts = split(g, states[key[2]])
                found[dtype, key].append(parts)
                if dtype == "float64" and key[:2] == ("ce", "immediate"):
                    k = key[2]
                    if not model.readout.normalizes(k):
                        continue
                    exact = immediate(subject.double_without_eps, states[k], k, targets)
                    pair = (parts, split(exact * _weight(k, objective, subject.loops), states[k]))
                    norm = torch.linalg.vector_norm(states[k], dim=-1).flatten()
                    columns = [norm, *(x for p in pair for x in (p.cos, p.radial))]
                    buckets[k].append(torch.stack(columns).double().cpu().numpy())
    kept = set(supervised(objective, subject.loops))
    table: list[Row] = []
    for (dtype, key), pieces in sorted(found.items(), key=lambda item: (item[0][1][2], item[0])):
        source, path, k = key
        trained = source == "penalty" or path == "recurrence" or k in kept
        table.append(_row(dtype, key, trained, pieces, subject.spec.model.d_model))
    small = [r for k in sorted(buckets) for r in eps_rows(k, eps, np.hstack(buckets[k]))]
    return {"gradients": table, "gradient_eps": small}


def immediate(model: LoopedLM, state: Tensor, k: int, targets: Tensor) -> Tensor:
    """Gradient of each token's cross-entropy, read at depth k, with respect to H_k (B, T, d)."""
    state = state.detach().requires_grad_()
    return torch.autograd.grad(token_nll(model, state, k, targets).sum(), state)[0]


def gradients(
    model: LoopedLM, states: list[Tensor], targets: Tensor, objective: Objective
) -> Iterator[tuple[Key, Tensor]]:
    """Each part of the objective's gradient with respect to H_1..H_K, from the last loop back.

    `states` are H_0..H_K of one pass, targets (B, T); gradients have the states' shape. Gradients
    through the recurrence are carried back one loop at a time, so at most one loop's graph is in
    memory.
    """
    loops = len(states) - 1
    trained = supervised(objective, loops)
    carried: dict[str, Tensor | None] = {"ce": None}
    if objective.penalty is not None:
        carried["penalty"] = None
    for k in range(loops, 0, -1):
        if k < loops:
            carried = _through(model, states, k + 1, carried)
            for source, g in carried.items():
                if g is not None:
                    yield (source, "recurrence", k), g
        own = immediate(model, states[k], k, targets) * _weight(k, objective, loops)
        yield ("ce", "immediate", k), own
        if k in trained:
            carried["ce"] = own if carried["ce"] is None else carried["ce"] + own
        if objective.penalty is not None:
            pull = _pull(states[k], objective.penalty) / loops
            yield ("penalty", "immediate", k), pull
            held = carried["penalty"]
            carried["penalty"] = pull if held is None else held + pull


def _weight(k: int, objective: Objective, loops: int) -> float:
    trained = supervised(objective, loops)
    if objective.weights is not None and k in trained:
        return objective.weights[k - 1] / sum(objective.weights)
    return 1 / len(trained) if k in trained else 1.0


def _pull(state: Tensor, penalty: Penalty) -> Tensor:
    """Gradient of the penalty of each token's state: 2 f'(|H|^2) H for a penalty f(|H|^2)."""
    squares = state.square().sum(-1).detach().requires_grad_()
    with torch.enable_grad():
        total = PENALTIES[penalty.kind](squares, state.shape[-1], penalty).sum()
    slope = torch.autograd.grad(total, squares)[0]
    return 2 * penalty.weight * slope[..., None] * state


def _pulled(after: Tensor, state: Tensor, g: Tensor) -> Tensor:
    # Bit for bit what `grad_outputs=g` gives. That argument would import sympy, which costs a
    # second in every job.
    return torch.autograd.grad((after * g).sum(), state, retain_graph=True)[0]


def _through(
    model: LoopedLM, states: list[Tensor], k: int, gradients: Mapping[str, Tensor | None]
) -> dict[str, Tensor | None]:
    """Gradients with respect to H_{k-1} from those with respect to H_k. What loop k uses from the
    start of the pass (H_0 for injection, |H_1| for the clamp) is treated as constant here."""
    start = Start(states[0]).after(states[1])
    state = states[k - 1].detach().requires_grad_()
    with torch.enable_grad():
        after = model.loop(state, k, start=start)
    return {
        source: None if g is None else _pulled(after, state, g) for source, g in gradients.items()
    }


def split(g: Tensor, state: Tensor) -> Split:
    """The radial part of gradients g at states H (..., d), per token, NaN where g is zero."""
    g, state = g.flatten(0, -2), state.flatten(0, -2)
    norm, size = torch.linalg.vector_norm(state, dim=-1), torch.linalg.vector_norm(g, dim=-1)
    # Both are normalized before the product, so that a tiny g times a large H loses no digits.
    cos = (g / size[:, None] * (state / norm[:, None])).sum(-1)
    return Split(cos, (g * (state / norm[:, None])).sum(-1), size)


def chance(width: int) -> tuple[float, float]:
    """E|cos| and E cos^2 between a fixed and a random direction in `width` dimensions."""
    log = math.lgamma(width / 2) - math.lgamma((width + 1) / 2)
    return math.exp(log) / math.sqrt(math.pi), 1 / width


def _row(dtype: str, key: Key, trained: bool, parts: list[Split], width: int) -> Row:
    cos, radial, size = (torch.cat(x).double().cpu().numpy() for x in zip(*parts, strict=True))
    cos = cos[np.isfinite(cos)]
    absolute = np.abs(cos)
    numbers = [np.nan] * 6
    if cos.size:
        numbers = [absolute.mean(), *np.quantile(absolute, [0.5, 0.9]), cos.mean()]
        numbers += [(cos**2).mean(), (cos**2).mean() * width]
    numbers += [radial.mean(), size.mean(), *chance(width)]
    source, path, k = key
    lead = [SPLIT, k, source, path, int(trained), dtype, cos.size, width]
    return [*lead, *map(number, numbers)]


def eps_rows(k: int, eps: float, columns: Numbers) -> list[Row]:
    """Rows of `gradient_eps.csv`. `columns` (5, N): norm, cos, radial, then cos and radial without
    eps."""
    columns = columns[:, np.isfinite(columns).all(axis=0)]
    place = np.floor(np.log10(columns[0]) * BUCKETS_A_DECADE).astype(int)
    rows: list[Row] = []
    for at in np.unique(place).tolist():
        _, cos, radial, cos0, radial0 = columns[:, place == at]
        low, high = (10 ** (i / BUCKETS_A_DECADE) for i in (at, at + 1))
        means = (np.abs(cos).mean(), np.abs(cos0).mean(), radial.mean(), radial0.mean())
        lead = [SPLIT, k, number(eps), number(low), number(high), cos.size]
        rows.append([*lead, *map(number, means)])
    return rows
