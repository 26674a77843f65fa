"""How a loop moves a state: the activity lemma, as an instrument and in trained models.

H_{k+1} = F(H_k) with pre-norm branches: F(su) = s u + b(u) + O(1/s), u a direction, s a norm. Then

    radial increment   <u_k, H_{k+1} - H_k>         -> a(u) = <u, b(u)>, whatever s
    angular step       |u_{k+1} - u_k| x s_k        -> |b_perp(u)|,      whatever s

All in float64, over tokens of the validation split; per token, then aggregated. `updates.csv`
follows the trained model along k, where s and u change together; in cells with an inter-loop norm
F sees H_k / rms(H_k): its updates do not fall with s, and the lemma does not speak of them.
`update_fixed.csv` takes the directions of H_k and grows s, with eps = 0 and without an inter-loop
norm: a check of the instrument, not a finding.
"""

from collections import defaultdict
from collections.abc import Iterable
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from blindspot.lm.model import Block, LoopedLM
from blindspot.lm.recurrence import Start
from blindspot.measure.subject import Ids, Row, Subject, number

SPLIT = "validation"
#: Norms at which F(su) is evaluated.
NORMS = tuple(10.0**i for i in range(7))

Numbers = NDArray[np.float64]


@torch.no_grad()
def measure(subject: Subject) -> dict[str, list[Row]]:
    """Both files."""
    rows = subject.sample(SPLIT, subject.settings.probe_tokens)
    return {"updates": along(subject, rows), "update_fixed": fixed(subject, rows)}


def unit(state: Tensor) -> Tensor:
    """u = H / |H| over the last dimension."""
    return state / torch.linalg.vector_norm(state, dim=-1, keepdim=True)


def along(subject: Subject, rows: Ids) -> list[Row]:
    """Rows of `updates.csv` of windows (n, T + 1)."""
    loops, model = subject.settings.update_loops, subject.double
    found: dict[int, list[Numbers]] = defaultdict(list)
    for inputs, _ in subject.chunks(rows):
        before, state = None, model.embed(inputs)
        first = model.loop(state, 1)
        start = Start(state).after(first)
        for k in range(loops):
            after = first if k == 0 else model.loop(state, k + 1, start=start)
            away = torch.linalg.vector_norm(unit(after) - unit(first), dim=-1)
            values = torch.cat([update(before, state, after), away[None]]).flatten(1)
            found[k].append(values.cpu().numpy())
            before, state = state, after
    table: list[Row] = []
    for k in range(loops):
        s, increment, radial, size, step, successive, away = np.hstack(found[k])
        scaled = step * s
        numbers = [s.mean(), np.median(s), increment.mean()]
        numbers += [radial.mean(), np.median(radial), radial.std(), size.mean()]
        numbers += [step.mean(), np.median(step), angle(step).mean()]
        numbers += [scaled.mean(), np.median(scaled), scaled.std()]
        last = ["", ""] if k == 0 else [number(successive.mean()), number(angle(away).mean())]
        table.append([SPLIT, k, subject.loops, s.size, *map(number, numbers), *last])
    return table


def angle(chord: Numbers) -> Numbers:
    """Angle between two directions at distance |u - v|, radians: exact where it is small."""
    return np.asarray(2 * np.arcsin(np.minimum(chord / 2, 1)))


def update(before: Tensor | None, state: Tensor, after: Tensor) -> Tensor:
    """Of H_{k-1} (None at k = 0), H_k, H_{k+1}, each (..., d), per token, stacked to (6, ...):

    s_k, s_{k+1} - s_k, radial increment, |update|, angular step, cosine of successive updates.
    """
    delta, u, v = after - state, unit(state), unit(after)
    s, t = (torch.linalg.vector_norm(x, dim=-1) for x in (state, after))
    cosine = torch.full_like(s, torch.nan)
    if before is not None:
        cosine = (unit(state - before) * unit(delta)).sum(-1)
    sizes = (torch.linalg.vector_norm(x, dim=-1) for x in (delta, v - u))
    return torch.stack([s, t - s, (u * delta).sum(-1), *sizes, cosine])


def branches(model: LoopedLM, u: Tensor) -> Tensor:
    """b(u) (B, T, d): all residual branches of the stack at u itself, the limit of F(su) - su."""
    total = torch.zeros_like(u)
    for block in cast(Iterable[Block], model.blocks):
        total += block.written(block.attention(block.attention_norm(u)), "attention")
        total += block.written(block.mlp(block.mlp_norm(u)), "mlp")
    return total


def fixed(subject: Subject, rows: Ids) -> list[Row]:
    """Rows of `update_fixed.csv` of windows (n, T + 1), at the directions of H_1 and H_K."""
    model = subject.double_without_eps
    depths = sorted({1, subject.loops})
    found: dict[tuple[int, float], list[Numbers]] = defaultdict(list)
    for inputs, _ in subject.chunks(rows):
        states = subject.double(inputs)
        for k in depths:
            u = unit(states[k])
            b = branches(model, u)
            a = (u * b).sum(-1)
            perp = torch.linalg.vector_norm(b - a[..., None] * u, dim=-1)
            for s in NORMS:
                _, _, radial, _, step, _ = update(None, s * u, model.stack(s * u))
                values = torch.stack(
                    [radial, a, (radial - a).abs(), s * step, perp, (s * step - perp).abs()]
                )
                found[k, s].append(values.flatten(1).cpu().numpy())
    table: list[Row] = []
    for (k, s), parts in sorted(found.items()):
        tokens = np.hstack(parts)
        lead = [SPLIT, k, number(s), tokens.shape[1]]
        table.append([*lead, *map(number, tokens.mean(axis=1))])
    return table
