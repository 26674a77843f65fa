"""Cross-entropy through the tied head without the logits of all loops, or of one, at once.

Logits of a whole batch at K depths would be the largest tensors of a training step: B T V numbers
per depth, and as many again for their gradient. Here a slice of tokens is projected, scored and, in
training, differentiated at once, so that only dH and dW are kept. That is the whole saving:
the number of matrix products is that of full logits (three per token), and none is done twice.

torch's own `F.linear_cross_entropy` keeps the full logits by default, and in its chunked mode it
breaks a compiled graph and measured slower on the CPU (benchmarks/README.md).
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

#: Logits of one slice, in numbers: what a core's cache can nearly hold, and what fills a GPU.
SLICE = {"cpu": 2**20, "cuda": 2**26}
TILE = 128


def rows(vocabulary: int, device: torch.device) -> int:
    """Tokens of one slice; on a GPU in whole tiles of its matrix products."""
    n = max(1, SLICE.get(device.type, SLICE["cuda"]) // vocabulary)
    return n if device.type == "cpu" or n < TILE else n // TILE * TILE


def _working_type(x: Tensor) -> torch.dtype:
    """The type of the matrix products: what autocast would choose, or the input's own."""
    if torch.is_autocast_enabled(x.device.type):
        return torch.get_autocast_dtype(x.device.type)
    return x.dtype


class _MeanCrossEntropy(torch.autograd.Function):
    """Mean over depths of the mean cross-entropy, and that of each depth (not differentiable).

    Depths count by their weights, whose mean is 1 (none: all alike); `z` is the weight of log^2 Z.

    The gradients are made on the way, up to the factor that `backward` is given.
    """

    @staticmethod
    def forward(
        ctx: Any,
        weight: Tensor,
        targets: Tensor,
        dtype: torch.dtype,
        weights: Sequence[float] | None,
        z: float,
        *readouts: Tensor,
    ) -> tuple[Tensor, Tensor]:
        exact = torch.promote_types(dtype, torch.float32)
        head, n = weight.to(dtype), targets.numel()
        size = rows(len(weight), weight.device)
        d_weight = torch.zeros_like(weight, dtype=exact)
        d_readouts, sums, squares = [], [], []
        for i, readout in enumerate(readouts):
            x = readout.to(dtype)
            square = torch.zeros((), dtype=exact, device=x.device)
            pieces, total = [], torch.zeros((), dtype=exact, device=x.device)
            for part, answer in zip(x.split(size), targets.split(size), strict=True):
                logits = (part @ head.T).to(exact)
                # log Z by way of the greatest probability, which cannot underflow; softmax is one
                # pass, where exp of log_softmax would be slow for the many that do. (amax, since
                # max, which says where as well, takes four times as long.)
                top = logits.amax(dim=-1, keepdim=True)
                own = logits.gather(1, answer[:, None])
                p = logits.softmax(dim=-1)
                log_z = top - p.amax(dim=-1, keepdim=True).log()
                total = total + (log_z - own).sum()
                if z:
                    square = square + log_z.square().sum()
                    # d log^2 Z / d logits = 2 log Z p.
                    extra = 2 * z * log_z * p
                # d CE / d logits = p - 1 at the answer, p elsewhere.
                right = p.gather(1, answer[:, None])
                slope = p.scatter_(1, answer[:, None], right - 1)
                if z:
                    slope = slope + extra
                if weights is not None:
                    slope = slope * weights[i]
                slope = slope.to(dtype)
                pieces.append(slope @ head)
                if dtype == exact:
                    d_weight.addmm_(slope.T, part)
                else:
                    d_weight += slope.T @ part
            d_readouts.append(torch.cat(pieces) if len(pieces) > 1 else pieces[0])
            sums.append(total)
            squares.append(square)
        each = torch.stack(sums) / n
        counted = each if not z else each + z * torch.stack(squares) / n
        if weights is not None:
            counted = counted * counted.new_tensor(weights)
        ctx.save_for_backward(d_weight, *d_readouts)
        ctx.scale = 1 / (n * len(readouts))
        ctx.mark_non_differentiable(each)
        return counted.mean(), each

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _each: Tensor) -> tuple[Tensor | None, ...]:
        factor = gradient * ctx.scale
        d_weight, *d_readouts = ctx.saved_tensors
        parts = [d.to(factor.dtype) * factor for d in d_readouts]
        return d_weight * factor, None, None, None, None, *parts


def mean_cross_entropy(
    weight: Tensor,
    readouts: Sequence[Tensor],
    targets: Tensor,
    weights: Sequence[float] | None = None,
    z_loss: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """CE in nats a token of each readout (B, T, d) through the head `weight` (V, d), for targets
    (B, T): the mean over readouts, to be minimized, and one number a readout, to be looked at.

    In what is minimized `z_loss` times the mean of log^2 Z is added to each readout's CE, and
    readouts count by `weights`, if there are any.

    float32 or better outside the matrix products; gradients to `weight` and `readouts`, once.
    """
    flat = [readout.flatten(0, -2) for readout in readouts]
    answers = targets.flatten()
    if weights is not None:
        weights = [w * len(weights) / sum(weights) for w in weights]
    dtype = _working_type(flat[0])
    mean, each = _MeanCrossEntropy.apply(weight, answers, dtype, weights, z_loss, *flat)
    return mean, each


def token_cross_entropy(weight: Tensor, readout: Tensor, targets: Tensor) -> Tensor:
    """CE in nats of each target (...), read from (..., d): shape of targets, float32 or better.

    For evaluation: without gradients its memory grows neither with batch nor with depths.
    """
    flat, answers = readout.flatten(0, -2), targets.flatten()
    size = rows(len(weight), weight.device)
    pieces = []
    for part, answer in zip(flat.split(size), answers.split(size), strict=True):
        logits = F.linear(part, weight)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        pieces.append(F.cross_entropy(logits, answer, reduction="none"))
    return torch.cat(pieces).view(targets.shape)
