"""Which directions of a state are seen, and which are active?

At states H_k of single tokens, k = 1 and K, for a unit direction v, in float64:

    visibility    |H_k| sqrt(Var_p(J v))    J v: change of the logits along v, p: the predictions
    activity      |D v|                     D: derivative of H_{k+1} by H_k of the same token

Var_p(J v) = v^T J^T (diag p - p p^T) J v is the Fisher metric: it does not see what shifts all
logits alike. The factor |H_k| makes it a change by the state's own size, so a scale-invariant
readout gives the same number at every scale.

Both operators are built whole, row by row in reverse mode, and averaged over states. Randomized
methods would find the ends of the spectrum for less, but not how many dimensions a state hides; at
d = 768 a state takes about 1e11 operations, most of them in the head.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from blindspot.declared.spectrum import DIRECTIONS, HIDDEN, RANK, STATES
from blindspot.lm.model import Block, LoopedLM
from blindspot.lm.recurrence import Start, leave
from blindspot.measure.subject import Ids, Row, Subject, number
from blindspot.measure.updates import unit

SPLIT = "validation"
#: Numbers that are held at a time, roughly: of a loop's graph, or of changes of the logits.
HELD = 1 << 27


@dataclass
class Places:
    """Some tokens of one window, after loop k.

    `state` (P, d) is their H_k, `start` what loop k + 1 takes of the pass's beginning, `cache` the
    keys and values (heads, T, w) of the whole window in each layer of loop k + 1, and `earlier`
    (P, T) says which of these each token attends to besides its own.
    """

    model: LoopedLM
    k: int
    state: Tensor
    start: Start
    cache: list[tuple[Tensor, Tensor]]
    earlier: Tensor

    @property
    def size(self) -> Tensor:
        """|H_k| (P, 1)."""
        return torch.linalg.vector_norm(self.state, dim=-1, keepdim=True)

    @cached_property
    def read(self) -> Tensor:
        """Derivative of r(H_k) by H_k: (P, d, d), a row an entry of r."""
        return _derivative(lambda state: self.model.readout(state, self.k), self.state)

    @cached_property
    def moved(self) -> Tensor:
        """Derivative of H_{k+1} by H_k of the same token: (P, d, d)."""
        return _derivative(self.next, self.state)

    def seen(self, directions: Tensor) -> Tensor:
        """Changes (P, V, m) of the predictions, whose squared norms are the Fisher metric's for
        directions (P, d, m), or (d, m) for all tokens, in units of |H_k|."""
        p = self.model.logits(self.state, self.k).softmax(-1)[..., None]
        change = self.model.embedding.weight @ (self.read @ directions * self.size[..., None])
        return (change - (change * p).sum(1, keepdim=True)) * p.sqrt()

    def next(self, state: Tensor) -> Tensor:
        """H_{k+1} (..., P, d) of these tokens from H_k (..., P, d), other tokens held."""
        given = self.model.entering(state, self.k + 1, self.start)
        x = given
        for block, (keys, values) in zip(self.model.blocks, self.cache, strict=True):
            assert isinstance(block, Block)
            x = self._through(block, keys, values, x)
        # A clamp through which training had no gradient clamps all the same.
        spec = self.model.spec
        if spec.clamp == "stopped":
            spec = spec.model_copy(update={"clamp": "through"})
        return leave(spec, given, x, self.k + 1, self.start)

    def _through(self, block: Block, keys: Tensor, values: Tensor, x: Tensor) -> Tensor:
        """`Block.forward` for single tokens whose predecessors are fixed."""
        heads, _, w = keys.shape
        q, own_key, own_value = _heads(block, x, heads).unbind(-3)
        before = torch.einsum("...phw,htw->...pht", q, keys)
        before = before.masked_fill(~self.earlier[:, None], -torch.inf)
        own = (q * own_key).sum(-1, keepdim=True)
        weights = (torch.cat([before, own], -1) / w**0.5).softmax(-1)
        y = torch.einsum("...pht,htw->...phw", weights[..., :-1], values)
        y = y + weights[..., -1:] * own_value
        x = x + block.written(block.attention.out(y.flatten(-2)), "attention")
        return x + block.written(block.mlp(block.mlp_norm(x)), "mlp")


def _heads(block: Block, x: Tensor, heads: int) -> Tensor:
    """Queries, keys and values (..., 3, heads, w) of a block's input (..., d)."""
    qkv: Tensor = block.attention.qkv(block.attention_norm(x))
    return qkv.unflatten(-1, (3, heads, -1))


def _derivative(f: Callable[[Tensor], Tensor], at: Tensor) -> Tensor:
    """Derivatives (P, d, d) of f, from (..., P, d) to (..., P, d), token by token."""
    # A copy for each row: `torch.func` would do with one, but takes seconds to load.
    copies = at.repeat(at.shape[-1], 1, 1).requires_grad_()
    with torch.enable_grad():
        rows = torch.diagonal(f(copies), dim1=0, dim2=-1).sum()
    return torch.autograd.grad(rows, copies)[0].transpose(0, 1)


@torch.no_grad()
def measure(subject: Subject) -> dict[str, list[Row]]:
    """Both files."""
    rows = subject.sample(SPLIT, subject.settings.probe_tokens)
    tables: dict[str, list[Row]] = {"spectrum": [], "spectrum_hidden": []}
    for k in sorted({1, subject.loops}):
        found, hidden = spectrum(list(places(subject, rows, k)))
        n = len(hidden)
        for name, values in found.items():
            tables["spectrum"].append([SPLIT, k, name, n, *map(number, values)])
        width, counts = subject.spec.model.d_model, hidden[:, 0]
        rank, overlap = min(RANK, width), found["least-visible"][3]
        least, most = int(counts.min()), int(counts.max())
        means = number(float(counts.mean())), number(float(hidden[:, 1].mean()))
        row = [SPLIT, k, n, width, rank, means[0], least, most, means[1]]
        tables["spectrum_hidden"].append([*row, number(overlap), number(rank / width)])
    return tables


def places(subject: Subject, rows: Ids, k: int) -> Iterator[Places]:
    """Up to `STATES` tokens after loop k, spread over windows (n, T + 1) and within them, where
    the last one is always among them."""
    rows = rows[[i * len(rows) // STATES for i in range(STATES)]] if len(rows) > STATES else rows
    model, length = subject.double, rows.shape[1] - 1
    each = min(length, max(1, STATES // len(rows)))
    at = torch.tensor([(i + 1) * length // each - 1 for i in range(each)], device=subject.device)
    d, V, layers = model.spec.d_model, model.spec.vocab_size, model.spec.layers
    together = max(1, HELD // (d * max(V, 25 * d * layers)))
    for inputs, _ in subject.chunks(rows, length):
        states = model(inputs, loops=k)
        start = Start(states[0]).after(states[1])
        x = model.entering(states[k], k + 1, start)
        cache = []
        for block in model.blocks:
            assert isinstance(block, Block)
            _, keys, values = _heads(block, x[0], model.spec.heads).transpose(0, -2).unbind(1)
            cache.append((keys, values))
            x = block(x)
        size = start.size
        assert size is not None
        for t in at.split(together):
            own = Start(states[0][0, t], size[0, t])
            earlier = torch.arange(length, device=t.device) < t[:, None]
            yield Places(model, k, states[k][0, t], own, cache, earlier)


def spectrum(tokens: list[Places]) -> tuple[dict[str, tuple[float, ...]], Tensor]:
    """Of each of `DIRECTIONS` visibility, activity and its shares in the least visible and the most
    active subspace; and of each state (n, 2) how many dimensions are hidden, and which share of
    the radial direction is in them."""
    first = tokens[0]
    d, n = first.state.shape[-1], sum(len(t.state) for t in tokens)
    axes = torch.eye(d).to(first.state)
    head = first.model.embedding.weight
    head = head - head.mean(0)
    gram = head.T @ head
    visible, active = torch.zeros_like(axes), torch.zeros_like(axes)
    total = torch.zeros_like(axes[0])
    hidden = []
    for t in tokens:
        visible += _gram(t.seen(axes))
        active += _gram(t.moved)
        total += t.state.sum(0)
        hidden.append(_hidden(t.read, gram, unit(t.state)))
    rank = min(RANK, d)
    least = torch.linalg.eigh(visible).eigenvectors[:, :rank]
    most = torch.linalg.eigh(active).eigenvectors[:, -rank:]
    ones, mean = torch.full_like(total, d**-0.5), unit(total)
    fixed = {"ones": ones[:, None], "mean-state": mean[:, None]}
    fixed |= {"least-visible": least, "most-active": most}
    # Over all directions a mean square is the trace over d.
    chance = n * rank / d
    traces = [float(visible.trace()) / d, float(active.trace()) / d]
    sums = {name: torch.zeros(4).to(total) for name in DIRECTIONS}
    sums["random"] = torch.tensor([*traces, chance, chance]).to(total)
    # Once more along what was found: a direction's own change is known to more digits than a
    # quadratic form that is nearly zero.
    for t in tokens:
        chosen = {"radial": unit(t.state)[..., None]}
        chosen |= {name: v.expand(len(t.state), -1, -1) for name, v in fixed.items()}
        v = torch.cat([*chosen.values()], -1)
        parts = [t.seen(v), t.moved @ v, least.T @ v, most.T @ v]
        values = torch.stack([part.square().sum((0, 1)) for part in parts])
        counts = [part.shape[-1] for part in chosen.values()]
        for name, own in zip(chosen, values.split(counts, 1), strict=True):
            sums[name] += own.mean(1)
    result = {}
    for name, value in sums.items():
        seen, moved, *shares = (value / n).tolist()
        result[name] = (seen**0.5, moved**0.5, *shares)
    return result, torch.cat(hidden)


def _gram(columns: Tensor) -> Tensor:
    """(m, m) inner products of changes (P, c, m), summed over tokens."""
    flat = columns.flatten(0, 1)
    return flat.T @ flat


def _hidden(read: Tensor, gram: Tensor, u: Tensor) -> Tensor:
    """(P, 2) of the readout's derivatives (P, d, d), the centred head's Gram matrix (d, d) and u
    (P, d): hidden dimensions, and the share of u in them."""
    found = torch.linalg.eigh(read.mT @ gram @ read)
    low = found.eigenvalues <= HIDDEN * found.eigenvalues[:, -1:]
    share = ((found.eigenvectors.mT @ u[..., None])[..., 0].square() * low).sum(-1)
    return torch.stack([low.sum(-1).to(u), share], -1)
