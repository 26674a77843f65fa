"""The step of the paper's release, as the plain PyTorch program that its description makes it.

Modules of PyTorch, attention with all heads in one product and its weights in full, a mask that is
filled in at every call, the logits of all loops held until the backward pass, one number read back
at every loop, `torch.optim.AdamW`. Dropout, where there is any, is on the embedding sum, on the
attention weights and on the MLP's output. Written for comparison, from what is known of the release
(none of its code is here); per-loop losses through RMSNorm, the paper's `perloop-rms`.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from blindspot.config.spec import ModelSpec, RunSpec


class Norm(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


class Layer(nn.Module):
    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        d = spec.d_model
        self.heads = spec.heads
        self.before_attention, self.before_mlp = Norm(d, spec.norm_eps), Norm(d, spec.norm_eps)
        self.q, self.k, self.v, self.out = (nn.Linear(d, d, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(d, 4 * d, bias=False) for _ in range(2))
        self.down = nn.Linear(4 * d, d, bias=False)
        self.drop_weights = nn.Dropout(spec.dropout.rate)
        self.drop_output = nn.Dropout(spec.dropout.rate)

    def attend(self, x: Tensor) -> Tensor:
        B, T, d = x.shape
        q, k, v = (
            p(x).view(B, T, self.heads, d // self.heads).transpose(1, 2)
            for p in (self.q, self.k, self.v)
        )
        scores = q @ k.transpose(-2, -1) / math.sqrt(d // self.heads)
        later = torch.triu(torch.ones(T, T, dtype=torch.bool, device=x.device), diagonal=1)
        weights = self.drop_weights(scores.masked_fill(later, -math.inf).softmax(-1))
        return self.out((weights @ v).transpose(1, 2).contiguous().view(B, T, d))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(self.before_attention(x))
        y = self.before_mlp(x)
        return x + self.drop_output(self.down(F.silu(self.gate(y)) * self.up(y)))


class Release(nn.Module):
    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.loops = spec.loops
        self.tokens = nn.Embedding(spec.vocab_size, spec.d_model)
        self.positions = nn.Embedding(spec.context, spec.d_model)
        self.drop = nn.Dropout(spec.dropout.rate)
        self.layers = nn.ModuleList(Layer(spec) for _ in range(spec.layers))
        self.norm = Norm(spec.d_model, spec.norm_eps)

    def forward(self, ids: Tensor) -> list[Tensor]:
        """Logits (B, T, V) after each loop."""
        h = self.drop(self.tokens(ids) + self.positions(torch.arange(ids.shape[1])))
        found = []
        for _ in range(self.loops):
            for layer in self.layers:
                h = layer(h)
            found.append(F.linear(self.norm(h), self.tokens.weight))
            h.norm(dim=-1).mean().item()
        return found


def stepper(spec: RunSpec) -> Callable[[Tensor, int], None]:
    torch.manual_seed(spec.seed)
    model, t = Release(spec.model), spec.training
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=t.learning_rate, betas=t.betas, weight_decay=t.weight_decay
    )

    def step(ids: Tensor, _: int) -> None:
        optimizer.zero_grad()
        targets = ids[:, 1:].reshape(-1)
        losses = [F.cross_entropy(x.flatten(0, 1), targets) for x in model(ids[:, :-1])]
        torch.stack(losses).mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), t.clip)
        optimizer.step()

    return step
