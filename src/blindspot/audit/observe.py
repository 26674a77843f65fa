"""What the audit does to a model: every depth read, every boundary between loops scaled.

At each boundary k = 1..K-1 (some of them, where K is large) the state is multiplied by alpha. The
change is followed on both ways that leave the boundary, and to the end:

    read      KL(p(H_k) || p(a H_k)), nats: what a loss at this depth could see of the scale
    loop      log(|F(a H_k)| / |F(H_k)|), F the next loop: what is left of the scale after it
    end       cross-entropy after loop K

Everything is kept by token, as numpy float64 arrays whose last two axes are (n, T), windows and
tokens. Norms and angles are of the model's `vector`, in float32 or better.
"""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import psutil
import torch
from numpy.typing import NDArray
from torch import Tensor

from blindspot.audit.looped import Looped, State, map_tensors
from blindspot.errors import BlindspotError

Array = NDArray[np.float64]
Ids = NDArray[np.int64]

#: log2 of the factors; 0 is left out, since nothing happens there.
ALL = tuple(i for i in range(-6, 7) if i)
QUICK = (-1, 1)


@dataclass(frozen=True)
class Settings:
    """How much is looked at."""

    #: Tokens of text, in windows of `length` (of the model's context, where that is shorter).
    tokens: int = 2048
    length: int = 256
    #: Factors, as powers of two; 1/2 and 2 are always among them.
    powers: tuple[int, ...] = ALL
    #: Loops beyond the trained number; None is as many again.
    beyond: int | None = None
    #: Boundaries at most, spread evenly, the first and the last among them: the work grows with
    #: their number times K.
    boundaries: int = 8

    @classmethod
    def quick(cls) -> "Settings":
        """Factors 1/2, 1 and 2, 128 tokens, one loop beyond: for a large model on a CPU."""
        return cls(tokens=128, length=32, powers=QUICK, beyond=1, boundaries=4)

    def chosen(self, loops: int) -> list[int]:
        """The boundaries that are looked at, of 1..K-1."""
        n = min(self.boundaries, loops - 1)
        return sorted({int(k) for k in np.linspace(1, loops - 1, n).round()})


@dataclass
class Observed:
    """K trained loops, D depths looked at (D >= K), M boundaries, A factors, n windows of T."""

    loops: int
    #: The M boundaries.
    at: list[int]
    dtype: str
    factors: list[float]
    norms: Array  # (D + 1, n, T): |H_k|, k = 0..D
    angles: Array  # (D, n, T): between H_{k-1} and H_k, radians, k = 1..D
    residual: Array  # (D, n, T): |H_k - H_{k-1}| / |H_{k-1}|
    ce: Array  # (D, n, T): cross-entropy at exit k, nats
    shift: Array  # (D - 1, n, T): KL(p(H_k) || p(H_{k-1})), k = 2..D
    collapse: Array  # (D + 1, 3, n): see `collapse`
    clamped: Array  # (K, n, T): cross-entropy at exit k with |H_k| held at |H_1|
    noise: Array  # (M, n, T): KL of reading H_k with its entries off by rounding
    kl: Array  # (M, A, n, T)
    log_ratio: Array  # (M, A, n, T)
    ce_end: Array  # (M, A, n, T)
    #: First depth beyond K whose state or logits were not finite; the depths end before it.
    overflow: int | None = None


def exact(x: Tensor) -> Tensor:
    """In float32, or in the tensor's own type where that is better."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def norm(x: Tensor) -> Tensor:
    """L2 norm over the last dimension."""
    return torch.linalg.vector_norm(exact(x), dim=-1)


def log_probabilities(logits: Tensor) -> Tensor:
    return exact(logits).log_softmax(dim=-1)


def divergence(p: Tensor, q: Tensor) -> Tensor:
    """KL(p || q) of log-probabilities (B, T, V): (B, T), nats; never below 0."""
    rows = [
        (a.exp() * (a - b)).nan_to_num(nan=torch.inf).sum(-1) for a, b in zip(p, q, strict=True)
    ]
    return torch.stack(rows).clamp(min=0)


def nll(log_p: Tensor, targets: Tensor) -> Tensor:
    """Of each target (B, T), nats."""
    return -log_p.gather(-1, targets[..., None]).squeeze(-1)


def angle(a: Tensor, b: Tensor) -> Tensor:
    """Between two states' vectors, radians; exact where it is small."""
    u, v = (exact(x) / norm(x)[..., None] for x in (a, b))
    return 2 * torch.arcsin((norm(u - v) / 2).clamp(max=1))


def collapse(x: Tensor) -> Tensor:
    """Of states (B, T, d), whether tokens still differ: (3, B).

    common    |mean over tokens of H / |H||: 1 when all tokens point the same way
    level     share of |H|^2 in the mean over d, the part that a LayerNorm takes away
    rank      effective number of directions, (sum l)^2 / sum l^2 over squared singular values l of
              the tokens' directions: 1 when there is one, at most min(T, d)
    """
    x = exact(x)
    u = x / norm(x)[..., None]
    gram = u @ u.mT
    squares = x.square().sum((-1, -2))
    level = x.mean(-1).square().sum(-1) * x.shape[-1] / squares
    rank = gram.diagonal(dim1=-2, dim2=-1).sum(-1).square() / gram.square().sum((-1, -2))
    return torch.stack([norm(u.mean(-2)), level, rank])


@torch.no_grad()
def observe(
    model: Looped,
    windows: Ids,
    settings: Settings,
    advance: Callable[[float], None] = lambda _: None,
) -> Observed:
    """Look at a model on windows (n, T + 1) of ids. `advance` is told each part done, in all 1.

    Raises `BlindspotError` where the model's states or logits are not finite up to loop K.
    """
    model.check_loops()
    size = batch_size(model, windows.shape[1] - 1)
    batches = [windows[at : at + size] for at in range(0, len(windows), size)]
    parts: list[dict[str, Array]] = []
    dtype, depth = "", model.loops * 2 if settings.beyond is None else model.loops + settings.beyond
    for rows in batches:
        ids = torch.from_numpy(rows).to(model.device)
        batch = _Batch(model, settings, ids[:, :-1], ids[:, 1:])
        values, dtype = batch.values(depth), batch.dtype
        parts.append({name: x.double().cpu().numpy() for name, x in values.items()})
        advance(len(rows) / len(windows))
    reached = min(len(part["ce"]) for part in parts)
    cut = {"norms": reached + 1, "collapse": reached + 1, "shift": reached - 1}
    cut |= {"angles": reached, "residual": reached, "ce": reached}
    arrays = {}
    for name in parts[0]:
        axis = -1 if name == "collapse" else -2
        arrays[name] = np.concatenate([part[name][: cut.get(name)] for part in parts], axis=axis)
    factors = [2.0**power for power in settings.powers]
    overflow = reached + 1 if reached < depth else None
    return Observed(
        model.loops, settings.chosen(model.loops), dtype, factors, **arrays, overflow=overflow
    )


class _Batch:
    """One batch of windows: inputs and targets (B, T)."""

    def __init__(self, model: Looped, settings: Settings, inputs: Tensor, targets: Tensor) -> None:
        self.model, self.settings = model, settings
        self.inputs, self.targets = inputs, targets
        self.context, start = model.init(inputs)
        self.states: list[State] = [start]
        self.dtype = str(model.vector(start).dtype).removeprefix("torch.")

    def values(self, depth: int) -> dict[str, Tensor]:
        """Fields of `Observed`, (..., B, T)."""
        model = self.model
        ce, shift, scaled = [], [], []
        at = self.settings.chosen(model.loops)
        before = None
        for k in range(1, depth + 1):
            state = model.loop(self.context, self.states[-1], k)
            read = log_probabilities(model.read(self.context, state, k))
            if not (model.vector(state).isfinite().all() and read.isfinite().all()):
                if k <= model.loops:
                    raise BlindspotError(
                        f"{model.name}: the state or the logits after loop {k} are not finite "
                        f"({self.dtype}); if the weights are sound, use --dtype float32"
                    )
                break
            self.states.append(state)
            ce.append(nll(read, self.targets))
            if before is not None:
                shift.append(divergence(read, before))
            if k in at:
                scaled.append(self._boundary(state, k, read))
            before = read
        vectors = [model.vector(state) for state in self.states]
        steps = list(itertools.pairwise(vectors))
        return {
            "norms": torch.stack([norm(x) for x in vectors]),
            "angles": torch.stack([angle(a, b) for a, b in steps]),
            "residual": torch.stack([norm(exact(b) - exact(a)) / norm(a) for a, b in steps]),
            "ce": torch.stack(ce),
            "shift": torch.stack(shift),
            "collapse": torch.stack([collapse(x) for x in vectors]),
            "clamped": self._clamp(),
            **{name: torch.stack([x[name] for x in scaled]) for name in scaled[0]},
        }

    def _boundary(self, state: State, k: int, read: Tensor) -> dict[str, Tensor]:
        """What scaling H_k does; `read` are its log-probabilities."""
        model = self.model
        following = norm(model.vector(model.loop(self.context, state, k + 1)))
        jittered = log_probabilities(model.read(self.context, _jitter(state), k))
        found: dict[str, list[Tensor]] = {"kl": [], "log_ratio": [], "ce_end": []}
        for power in self.settings.powers:
            scaled = model.scale(state, 2.0**power)
            seen = log_probabilities(model.read(self.context, scaled, k))
            found["kl"].append(divergence(read, seen))
            for j in range(k + 1, model.loops + 1):
                scaled = model.loop(self.context, scaled, j)
                if j == k + 1:
                    found["log_ratio"].append((norm(model.vector(scaled)) / following).log())
            end = log_probabilities(model.read(self.context, scaled, model.loops))
            found["ce_end"].append(nll(end, self.targets))
        return {name: torch.stack(values) for name, values in found.items()} | {
            "noise": divergence(read, jittered)
        }

    def _clamp(self) -> Tensor:
        """Cross-entropy at exits 1..K with each token's norm held at what loop 1 made it."""
        model = self.model
        state, found = self.states[1], []
        for k in range(1, model.loops + 1):
            if k > 1:
                after = model.loop(self.context, state, k)
                factor = norm(model.vector(state)) / norm(model.vector(after))
                state = model.scale(after, factor[..., None])
            found.append(nll(log_probabilities(model.read(self.context, state, k)), self.targets))
        return torch.stack(found)


def _jitter(state: State) -> State:
    """The state with each entry off by one rounding of its type, up or down at random."""
    generator = torch.Generator().manual_seed(0)

    def off(x: Tensor) -> Tensor:
        signs = torch.randint(0, 2, x.shape, generator=generator).to(x.device) * 2 - 1
        return x * (1 + torch.finfo(x.dtype).eps * signs).to(x.dtype)

    return map_tensors(off, state)


def batch_size(model: Looped, length: int) -> int:
    """Windows at a time: about seven tensors of logits in a quarter of the free memory."""
    if model.device.type == "cuda":
        free, tokens = torch.cuda.mem_get_info(model.device)[0], 16384
    else:
        free, tokens = psutil.virtual_memory().available, 2048
    fits = free / 4 / (7 * 4 * model.vocab_size * length)
    return max(1, min(math.floor(fits), tokens // length))
