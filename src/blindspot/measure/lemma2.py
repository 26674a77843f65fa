"""The activity lemma in trained weights, in float64, with the model's own eps and with eps 0.

F(su) = s u + b(u) + O(1/s). So loop k turns a state of norm s and direction u by

    tan(angle) = |b_perp(u)| / (s + b_par(u))        up to O(1/s^2)

`lemma2.csv`         H_1 of every token is scaled by 2^-10 .. 2^10, then the other loops are run
`lemma2_slope.csv`   slope of log angle over log scale, where the lemma applies: s >= 10 |b(u)|
`lemma2_update.csv`  both sides of the equation at the model's own states

b(u) is `updates.branches`: all branches evaluated at u itself, with eps 0. It does not use the
update that it is compared with.
"""

from collections import defaultdict

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from blindspot.declared.lemma2 import FAR, LEAST, SCALES
from blindspot.lm.model import LoopedLM
from blindspot.lm.recurrence import Start
from blindspot.measure.subject import Row, Subject, number, token_nll
from blindspot.measure.updates import angle, branches, unit

SPLIT = "validation"

Numbers = NDArray[np.float64]


@torch.no_grad()
def measure(subject: Subject) -> dict[str, list[Row]]:
    """All three files."""
    rows = subject.sample(SPLIT, subject.settings.probe_tokens)
    models = {subject.spec.model.norm_eps: subject.double, 0.0: subject.double_without_eps}
    tables: dict[str, list[Row]] = {"lemma2": [], "lemma2_slope": [], "lemma2_update": []}
    for eps, model in models.items():
        scaled: dict[tuple[float, int], list[Numbers]] = defaultdict(list)
        own: dict[int, list[Numbers]] = defaultdict(list)
        for inputs, targets in subject.chunks(rows):
            for a in SCALES:
                for k, values in enumerate(intervene(subject, model, inputs, targets, a), start=1):
                    scaled[a, k].append(values)
            states = model(inputs)
            for k in range(1, subject.loops + 1):
                own[k].append(sides(subject, model, states, k))
        found = {key: np.hstack(parts) for key, parts in scaled.items()}
        lead = [SPLIT, number(eps)]
        tables["lemma2"] += [[*lead, number(a), k, *row(found[a, k], k)] for a, k in found]
        for k, parts in own.items():
            angles = np.stack([found[a, k][2] for a in SCALES])
            far = np.stack([found[a, k][3] for a in SCALES]) >= FAR
            tables["lemma2_slope"].append([*lead, k, *slope_row(angles, far & (k > 1))])
            tables["lemma2_update"].append([*lead, k, *update_row(np.hstack(parts))])
    return tables


def intervene(
    subject: Subject, model: LoopedLM, inputs: Tensor, targets: Tensor, scale: float
) -> list[Numbers]:
    """A pass with H_1 scaled. For each k = 1..K an array (4, tokens): NLL, |H_k|, the angle of
    loop k, and s / |b(u)| at loop 2."""
    states = model(inputs, edit=lambda _, state, k: scale * state if k == 1 else state)
    start = Start(states[0]).after(states[1])
    given = model.entering(states[1], 2, start)
    b = branches(subject.double_without_eps, unit(given))
    ratio = _size(given) / _size(b)
    found = []
    for k, state in enumerate(states[1:], start=1):
        chord = torch.full_like(ratio, torch.nan)
        if k > 1:
            chord = _size(unit(state) - unit(model.entering(states[k - 1], k, start)))
        values = [token_nll(model, state, k, targets), _size(state), chord, ratio]
        observed = torch.stack(values).flatten(1).cpu().numpy()
        observed[2] = angle(observed[2])
        found.append(observed)
    return found


def sides(subject: Subject, model: LoopedLM, states: list[Tensor], k: int) -> Numbers:
    """For loop k and each token (6, tokens): s, |b|, |b_perp|, b_par, s tan(angle), and the lemma's
    prediction of s tan(angle)."""
    given, after = model.entering(states[k - 1], k, Start(states[0])), states[k]
    u, s = unit(given), _size(given)
    b = branches(subject.double_without_eps, u)
    par, perp = (b * u).sum(-1), _size(b - (b * u).sum(-1, keepdim=True) * u)
    # The update is small beside H_k, so its part orthogonal to u has more exact digits than that
    # of H_k.
    update = after - given
    along = (update * u).sum(-1)
    tangent = _size(update - along[..., None] * u) / (s + along)
    values = [s, _size(b), perp, par, s * tangent, perp / (1 + par / s)]
    return np.asarray(torch.stack(values).flatten(1).cpu().numpy())


def _size(x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x, dim=-1)


def row(values: Numbers, k: int) -> Row:
    """A row of `lemma2.csv`, without its keys, from values of `intervene` (4, tokens)."""
    nll, norm, turned, ratio = values
    angles = ["", ""] if k == 1 else [number(turned.mean()), number(float(np.median(turned)))]
    far = number(float((ratio >= FAR).mean()))
    return [nll.size, number(nll.mean()), number(norm.mean()), *angles, far]


def slope_row(angles: Numbers, counts: NDArray[np.bool_]) -> Row:
    """A row of `lemma2_slope.csv` from angles (scales, tokens); `counts` says which are used."""
    # An angle of zero has no logarithm.
    counts = counts & (angles > 0)
    kept = counts.sum(0) >= LEAST
    if not kept.any():
        return [0, "", "", "", ""]
    weight = counts[:, kept].astype(np.float64)
    x = np.log(np.array(SCALES))[:, None]
    y = np.log(np.where(counts, angles, 1.0))[:, kept]
    n = weight.sum(0)
    dx, dy = (z - (weight * z).sum(0) / n for z in (x, y))
    slopes = (weight * dx * dy).sum(0) / (weight * dx**2).sum(0)
    numbers = [n.mean(), slopes.mean(), np.median(slopes), slopes.std()]
    return [int(kept.sum()), *(number(float(v)) for v in numbers)]


def update_row(values: Numbers) -> Row:
    """A row of `lemma2_update.csv` from `sides` (6, tokens)."""
    s, b, perp, par, left, right = values
    ratio = left / right
    residual = np.abs(ratio - 1)
    numbers = [s.mean(), b.mean(), perp.mean(), np.median(perp), par.mean()]
    numbers += [np.median(x) for x in (left, right, ratio, residual)]
    numbers.append(np.quantile(residual, 0.9))
    return [s.size, *(number(float(v)) for v in numbers)]
