"""The looped decoder: one stack of pre-norm layers, applied K times.

    H_0 = embedding + position                                  (B, T, d)
    H_k = stack(H_{k-1}),   k = 1..K                            the same weights at every loop

where lm/recurrence.py may act between one loop and the next.

One forward pass gives every H_k; readouts, norms, updates and all diagnostics read those same
states. There is no key-value cache: generation is out of scope.

The residual stream stays in the parameters' type (float32) under autocast, since matrix products in
bfloat16 are added to it: otherwise rounding would freeze a state whose entries reach thousands.
"""

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from blindspot.config.spec import ModelSpec
from blindspot.lm import dropout
from blindspot.lm.attention import attend
from blindspot.lm.norm import RMSNorm
from blindspot.lm.readout import Readout
from blindspot.lm.recurrence import INTERLOOPS, Start, enter, leave


class Attention(nn.Module):
    """Causal multi-head self-attention, without biases."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.heads = spec.heads
        self.rate = spec.dropout.rate_at("attention")
        self.qkv = nn.Linear(spec.d_model, 3 * spec.d_model, bias=False)
        self.out = nn.Linear(spec.d_model, spec.d_model, bias=False)

    def forward(self, x: Tensor, key: Tensor | None = None) -> Tensor:
        """(B, T, d) to (B, T, d); weights are dropped where there is a key (B, 2)."""
        B, T, d = x.shape
        qkv = self.qkv(x)
        rate = 0.0 if key is None else self.rate
        if qkv.device.type == "cpu":
            mask = None
            if key is not None and dropout.threshold(rate):
                mask = dropout.kept(key, self.heads * T * T, rate)
            return self.out(attend(qkv, self.heads, mask, dropout.scale(rate)))
        # Fused, with masks of its own from the device's generator, which nothing else draws from.
        q, k, v = qkv.view(B, T, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=rate)
        return self.out(y.transpose(1, 2).reshape(B, T, d))


class SwiGLU(nn.Module):
    """down(silu(gate(x)) * up(x)) with a hidden width of 4 d, without biases."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        hidden = 4 * spec.d_model
        self.gate = nn.Linear(spec.d_model, hidden, bias=False)
        self.up = nn.Linear(spec.d_model, hidden, bias=False)
        self.down = nn.Linear(hidden, spec.d_model, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(spec.d_model, spec.norm_eps)
        self.attention = Attention(spec)
        self.mlp_norm = RMSNorm(spec.d_model, spec.norm_eps)
        self.mlp = SwiGLU(spec)
        if spec.sandwich:
            self.attention_post = RMSNorm(spec.d_model, spec.norm_eps)
            self.mlp_post = RMSNorm(spec.d_model, spec.norm_eps)
        self.sandwich = spec.sandwich
        self.divisor = spec.loops if spec.divide_branches else 1
        self.attention_rate = spec.dropout.rate_at("attention-output")
        self.mlp_rate = spec.dropout.rate_at("mlp-output")

    def forward(self, x: Tensor, keys: Tensor | None = None) -> Tensor:
        """(B, T, d) to (B, T, d); with dropout where there are keys (B, 3, 2)."""
        y = self.attention(self.attention_norm(x), dropout.key_at(keys, "attention"))
        key = dropout.key_at(keys, "attention-output")
        x = x + dropout.dropped(self.written(y, "attention"), key, self.attention_rate)
        key = dropout.key_at(keys, "mlp-output")
        y = self.written(self.mlp(self.mlp_norm(x)), "mlp")
        return x + dropout.dropped(y, key, self.mlp_rate)

    def written(self, y: Tensor, branch: Literal["attention", "mlp"]) -> Tensor:
        """What a branch writes into the stream, of its output (..., d)."""
        if self.sandwich:
            y = (self.attention_post if branch == "attention" else self.mlp_post)(y)
        return y if self.divisor == 1 else y / self.divisor


class LoopedLM(nn.Module):
    """A looped language model with a tied head.

    Parameters number V d + T d + L (16 d^2 + 2 d), and d more for each gain: of a readout, of an
    inter-loop norm, two a layer of a sandwich; 1 more for a learned exponent.
    """

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.spec = spec
        self.embedding = nn.Embedding(spec.vocab_size, spec.d_model)
        self.position = nn.Embedding(spec.context, spec.d_model)
        self.blocks = nn.ModuleList(Block(spec) for _ in range(spec.layers))
        self.readout = Readout(spec)
        rule = INTERLOOPS[spec.interloop]
        if rule is not None and rule.gained:
            self.interloop_gain = nn.Parameter(torch.ones(spec.d_model))
        #: In training, keep only each layer's input and compute the rest again when it is needed.
        self.recompute = False
        if spec.init_std is not None:
            self._initialize(spec.init_std)

    def _initialize(self, std: float) -> None:
        """Every matrix N(0, std^2); those that write into the stream scaled by 1/sqrt(2 L)."""
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                writes = name.endswith(("attention.out.weight", "mlp.down.weight"))
                nn.init.normal_(
                    parameter, std=std / math.sqrt(2 * self.spec.layers) if writes else std
                )

    def embed(self, tokens: Tensor, key: Tensor | None = None) -> Tensor:
        """H_0 (B, T, d) of token ids (B, T), T at most the context; dropped with a key (B, 2)."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.embedding(tokens) + self.position(positions)
        return dropout.dropped(x, key, self.spec.dropout.rate_at("embedding"))

    def stack(self, x: Tensor, keys: Tensor | None = None) -> Tensor:
        """One loop: all layers once, (B, T, d) to (B, T, d); `keys` (B, L, 3, 2) for dropout."""
        again = self.recompute and torch.is_grad_enabled()
        for i, block in enumerate(self.blocks):
            own = None if keys is None else keys[:, i]
            x = checkpoint(block, x, own, use_reentrant=False) if again else block(x, own)
        return x

    def entering(self, state: Tensor, k: int, start: Start | None = None) -> Tensor:
        """The input of loop k, made from H_{k-1} (..., d)."""
        return enter(self.spec, state, k, getattr(self, "interloop_gain", None), start)

    def loop(
        self, state: Tensor, k: int, keys: Tensor | None = None, start: Start | None = None
    ) -> Tensor:
        """H_k from H_{k-1}, with the rules between loops; `keys` of the step for dropout.
        `start` holds H_0 and |H_1|; models with a clamp or injection need it from loop 2."""
        x = self.entering(state, k, start)
        after = self.stack(x, dropout.loop_keys(keys, k, self.spec.layers))
        return leave(self.spec, x, after, k, start)

    def forward(
        self,
        tokens: Tensor,
        loops: int | None = None,
        edit: Callable[[Tensor, Tensor, int], Tensor] | None = None,
        keys: Tensor | None = None,
    ) -> list[Tensor]:
        """H_0..H_K of token ids (B, T), each (B, T, d), before any inter-loop norm.

        `loops` defaults to the K of training and may go beyond it. `edit(H_{k-1}, H_k, k)` replaces
        the state after loop k, for interventions; the returned states are the edited ones. There is
        dropout with `keys` (of `dropout.step_keys`, for K loops), else none, in training mode too.
        """
        loops = self.spec.loops if loops is None else loops
        if loops < 1:
            raise ValueError(f"loops {loops}: a looped model applies its stack at least once")
        states = [self.embed(tokens, dropout.embedding_key(keys))]
        start = Start(states[0])
        for k in range(1, loops + 1):
            state = self.loop(states[-1], k, keys, start)
            states.append(state if edit is None else edit(states[-1], state, k))
            if k == 1:
                start = start.after(states[1])
        return states

    def logits(self, state: Tensor, k: int) -> Tensor:
        """Logits (..., V) of H_k (..., d), read at depth k with the tied head."""
        return F.linear(self.readout(state, k), self.embedding.weight)
