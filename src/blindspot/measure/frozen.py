"""A forward pass in which tokens stop early. A token that has stopped is not computed again.

After each loop k < K, a decision is made for every token that is still active. A token that stops
keeps its state: in all later loops, every layer sees that same state, and later tokens attend to
it. Only the keys and values of a stopped token are still computed, once per layer.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from blindspot.lm.model import Block, LoopedLM
from blindspot.lm.recurrence import Start, leave

#: Whether to stop, (N,) bool, of logits (N, V) of the active tokens.
Decide = Callable[[Tensor], Tensor]


class Halted(NamedTuple):
    """Where each token of (B, T) stopped, and its state there (B, T, d)."""

    depth: Tensor
    state: Tensor


def run(model: LoopedLM, tokens: Tensor, decide: Decide, dense: bool = True) -> Halted:
    """Loop until every token has stopped, at K at the latest; `model` is in evaluation mode.

    As long as no token has stopped, a loop is `model.loop` itself. So if no token ever stops, the
    result is bit for bit that of a plain pass. With `dense=False` these loops use the code for
    single tokens, too (for tests).
    """
    K = model.spec.loops
    state = model.embed(tokens)
    depth = torch.full(tokens.shape, K, device=tokens.device)
    active = torch.ones_like(tokens, dtype=torch.bool)
    whole, kept = True, Kept(model, state)
    start = Start(state)
    for k in range(1, K + 1):
        plain = whole and dense
        if plain:
            state = model.loop(state, k, start=start)
        else:
            state = _loop(model, state, active, kept, k, start)
        if k == 1:
            start = start.after(state)
        # At depth K nothing is left to decide; every token that is still active is read here.
        logits = model.logits(state[active], k)
        if k == K:
            break
        stops = decide(logits)
        depth[active] = torch.where(stops, k, depth[active])
        # masked_scatter instead of indexing: one pass, and no indices are copied to the host.
        active = active.masked_scatter(active, ~stops)
        left = int(active.sum())
        whole = left == active.numel()
        if left == 0:
            break
    return Halted(depth, state)


class Kept:
    """Keys and values of every layer for tokens (B, T), and which of them are final."""

    def __init__(self, model: LoopedLM, state: Tensor) -> None:
        B, T, d = state.shape
        heads = model.spec.heads
        self.blocks = list(cast(Iterable[Block], model.blocks))
        self.pairs = [state.new_zeros(2, B, T, heads, d // heads) for _ in self.blocks]
        self.final = torch.zeros(B, T, dtype=torch.bool, device=state.device)


def _loop(
    model: LoopedLM, state: Tensor, active: Tensor, kept: Kept, k: int, start: Start
) -> Tensor:
    """H_k where `active` (B, T) is true, the unchanged state elsewhere: (B, T, d)."""
    given = model.entering(state, k, start)
    fresh = ~active & ~kept.final
    row, place = active.nonzero(as_tuple=True)
    # The active tokens of each sequence, packed to the front: (B, A), where A is the largest
    # number of active tokens in any sequence.
    slot = (active.cumsum(1) - 1)[active]
    widest = int(active.sum(1).max())
    positions = active.new_zeros(len(active), widest, dtype=torch.int64)
    positions[row, slot] = place
    places = torch.arange(active.shape[1], device=active.device)
    causal = (places <= positions[..., None])[:, None]
    x, frozen = given[active], given[fresh]
    heads = model.spec.heads
    for block, pair in zip(kept.blocks, kept.pairs, strict=True):
        attention = block.attention
        if len(frozen):
            pair[:, fresh] = _project(block, frozen)[1:]
        q, *pair_now = _project(block, x)
        pair[:, active] = torch.stack(pair_now)
        queries = q.new_zeros(len(active), widest, heads, q.shape[-1])
        queries[row, slot] = q
        keys, values = pair.transpose(2, 3)
        y = F.scaled_dot_product_attention(queries.transpose(1, 2), keys, values, attn_mask=causal)
        y = attention.out(y.transpose(1, 2)[row, slot].flatten(1))
        x = x + block.written(y, "attention")
        x = x + block.written(block.mlp(block.mlp_norm(x)), "mlp")
    kept.final |= fresh
    result = state.clone()
    sizes = None if start.size is None else start.size[active]
    result[active] = leave(model.spec, given[active], x, k, Start(start.state, sizes))
    return result


def _project(block: Block, x: Tensor) -> Tensor:
    """Queries, keys and values of tokens (N, d): (3, N, heads, d / heads)."""
    heads = block.attention.heads
    qkv = block.attention.qkv(block.attention_norm(x))
    return qkv.view(len(x), 3, heads, x.shape[-1] // heads).transpose(0, 1)
