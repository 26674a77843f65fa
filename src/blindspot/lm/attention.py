"""Causal attention of a training step on the CPU, with dropout on its weights.

torch's fused attention has no dropout on the CPU, and in float32 with heads as narrow as a small
model's it is slower there than its matrix products in full. Here queries go in tiles, each against
the keys up to its last one. A tile's weights are kept for the backward pass; its mask has one byte
per entry.

Forward and backward are operators that compilers treat as opaque, so that a compiled step and an
eager one compute the same.
"""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

#: Queries of a tile.
TILE = 128


def _tiles(length: int) -> Iterator[tuple[int, int]]:
    """First and end of each tile of queries, the last tile first: it reaches all keys."""
    for first in reversed(range(0, length, TILE)):
        yield first, min(first + TILE, length)


def _weights(flat: Tensor, groups: int, length: int) -> Iterator[Tensor]:
    """Views (groups, queries, keys) of the weights of each tile."""
    at = 0
    for first, end in _tiles(length):
        size = groups * (end - first) * end
        yield flat[at : at + size].view(groups, end - first, end)
        at += size


def _attend(
    qkv: Tensor, heads: int, mask: Tensor | None, scale: float, keep: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Output (B, T, d) of projections (B, T, 3 d); what backward needs: queries, keys and values
    (3, B heads, T, w), and, with `keep`, the weights of all tiles, flat."""
    B, T, width = qkv.shape
    d, groups = width // 3, B * heads
    w = d // heads
    # contiguous: with one head, or one token, the rest would be a view.
    parts = qkv.view(B, T, 3, heads, w).permute(2, 0, 3, 1, 4).contiguous()
    parts = parts.view(3, groups, T, w)
    q, k, v = parts
    sizes = [groups * (end - first) * end for first, end in _tiles(T)]
    flat = qkv.new_empty(sum(sizes) if keep else max(sizes))
    views = _weights(flat, groups, T) if keep else None
    out = qkv.new_empty(B, T, heads, w)
    causal = qkv.new_full((T, T), -math.inf).triu_(1)
    for first, end in _tiles(T):
        size = groups * (end - first) * end
        p = next(views) if views else flat[:size].view(groups, end - first, end)
        bias = causal[first:end, :end].expand_as(p)
        scores = torch.baddbmm(bias, q[:, first:end], k[:, :end].mT, alpha=1 / math.sqrt(w))
        torch.softmax(scores, -1, out=p)
        used = p
        if mask is not None:
            used = torch.mul(p, mask.view(groups, T, T)[:, first:end, :end].to(p.dtype), out=scores)
        y = torch.bmm(used, v[:, :end])
        if mask is not None:
            y *= scale
        out[:, first:end] = y.view(B, heads, end - first, w).transpose(1, 2)
    return out.view(B, T, d), parts, flat if keep else qkv.new_empty(0)


def _attend_backward(
    gradient: Tensor, parts: Tensor, flat: Tensor, mask: Tensor | None, scale: float
) -> Tensor:
    """Gradient of the projections (B, T, 3 d), given that of the output (B, T, d)."""
    B, T, d = gradient.shape
    _, groups, _, w = parts.shape
    heads, factor = groups // B, 1 / math.sqrt(w)
    q, k, v = parts
    slope = gradient.view(B, T, heads, w).transpose(1, 2).reshape(groups, T, w)
    if mask is not None:
        slope = slope * scale
    result = torch.empty_like(parts)
    for (first, end), p in zip(_tiles(T), _weights(flat, groups, T), strict=True):
        piece = slope[:, first:end].contiguous()
        d_p, used = torch.bmm(piece, v[:, :end].mT), p
        if mask is not None:
            here = mask.view(groups, T, T)[:, first:end, :end].to(p.dtype)
            d_p *= here
            used = here.mul_(p)
        d_scores = torch._softmax_backward_data(d_p, p, -1, p.dtype)
        result[0, :, first:end] = torch.bmm(d_scores, k[:, :end])
        # All keys' gradients come with the first tile in turn; later ones add to some.
        d_k = torch.bmm(d_scores.mT, q[:, first:end])
        d_v = torch.bmm(used.mT, piece)
        if end == T:
            result[1], result[2] = d_k, d_v
        else:
            result[1, :, :end] += d_k
            result[2, :, :end] += d_v
    result[:2] *= factor
    return result.view(3, B, heads, T, w).permute(1, 3, 0, 2, 4).contiguous().view(B, T, 3 * d)


_library = torch.library.Library("blindspot", "FRAGMENT")
_library.define(
    "attend(Tensor qkv, int heads, Tensor? mask, float scale, bool keep) "
    "-> (Tensor, Tensor, Tensor)"
)
_library.define(
    "attend_backward(Tensor gradient, Tensor parts, Tensor flat, Tensor? mask, float scale) "
    "-> Tensor"
)
_library.impl("attend", _attend, "CPU")
_library.impl("attend_backward", _attend_backward, "CPU")


@torch.library.register_fake("blindspot::attend", lib=_library)
def _attend_fake(
    qkv: Tensor, heads: int, mask: Tensor | None, scale: float, keep: bool
) -> tuple[Tensor, Tensor, Tensor]:
    B, T, width = qkv.shape
    groups = B * heads
    size = sum(groups * (end - first) * end for first, end in _tiles(T)) if keep else 0
    parts = qkv.new_empty(3, groups, T, width // 3 // heads)
    return qkv.new_empty(B, T, width // 3), parts, qkv.new_empty(size)


@torch.library.register_fake("blindspot::attend_backward", lib=_library)
def _attend_backward_fake(
    gradient: Tensor, parts: Tensor, flat: Tensor, mask: Tensor | None, scale: float
) -> Tensor:
    B, T, d = gradient.shape
    return gradient.new_empty(B, T, 3 * d)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, qkv: Tensor, heads: int, mask: Tensor | None, scale: float, keep: bool
    ) -> Tensor:
        y, parts, flat = torch.ops.blindspot.attend(qkv, heads, mask, scale, keep)
        ctx.save_for_backward(parts, flat, mask)
        ctx.scale = scale
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        parts, flat, mask = ctx.saved_tensors
        d_qkv = torch.ops.blindspot.attend_backward(
            gradient.contiguous(), parts, flat, mask, ctx.scale
        )
        return d_qkv, None, None, None, None


def attend(qkv: Tensor, heads: int, mask: Tensor | None = None, scale: float = 1.0) -> Tensor:
    """Causal attention's output (B, T, d) of queries, keys and values (B, T, 3 d), side by side.

    `mask` is uint8 (B, heads T T), 1 where a weight stays; those are multiplied by `scale`.
    """
    keep = torch.is_grad_enabled() and qkv.requires_grad
    y: Tensor = _Attention.apply(qkv, heads, mask, scale, keep)
    return y
