"""RMSNorm, with a backward pass that reads memory only a few times on the CPU.

torch has it as one kernel on a GPU; on the CPU it is a dozen operations, each with its result in
memory for the backward pass.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class _Normalize(torch.autograd.Function):
    """y = n gain with n = x / sqrt(mean(x^2) + eps), over the last dimension."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Tensor | None, eps: float) -> Tensor:
        size = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        inverse = (size.square() / x.shape[-1] + eps).rsqrt()
        ctx.save_for_backward(x, gain, inverse)
        y = x * inverse
        return y if gain is None else y.mul_(gain)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, gain, inverse = ctx.saved_tensors
        n = x * inverse
        product = gradient * n
        if gain is None:
            d_gain, inner, d_n = None, product.sum(-1, keepdim=True), gradient
        else:
            d_gain = product.flatten(0, -2).sum(0)
            inner, d_n = (product @ gain)[..., None], gradient * gain
        # dx = (dn - n mean(dn n)) / rms
        d_x = torch.addcmul(d_n, n, inner, value=-1 / x.shape[-1]).mul_(inverse)
        return d_x, d_gain, None


def rms_norm(x: Tensor, gain: Tensor | None, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps), times the gain (d,) where there is one, over the last dimension of
    x (..., d)."""
    if x.device.type != "cpu" or not torch.is_grad_enabled():
        return F.rms_norm(x, x.shape[-1:], gain, eps)
    y: Tensor = _Normalize.apply(x, gain, eps)
    return y


class RMSNorm(nn.Module):
    """x / rms(x) * gain over the last dimension."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)
