"""Readouts: how a state H_k is looked at before the tied head.

A readout r is scale-invariant when r(a H) = r(H) for every a > 0. Through such a readout the
cross-entropy cannot see the norm of H: its gradient has no part along H (the visibility lemma).

    rms               H / rms(H) * gain          scale-invariant (up to eps)
    layernorm         (H - mean) / std * gain    scale-invariant (up to eps)
    raw               H                          sees the scale
    final-only-rms    raw for k < K, rms for k >= K (K the trained number of loops)

One gain is shared by all depths. Raw has none at all, rather than one that never gets a gradient.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from blindspot.config.spec import ModelSpec
from blindspot.lm.norm import rms_norm


class Readout(nn.Module):
    """r(H_k) for depth k = 1, 2, ...; shapes (..., d) to (..., d)."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.kind = spec.readout
        self.loops = spec.loops
        self.eps = spec.norm_eps
        if self.kind != "raw":
            self.gain = nn.Parameter(torch.ones(spec.d_model))

    def normalizes(self, k: int) -> bool:
        """Whether the readout at depth k is scale-invariant."""
        return self.kind in ("rms", "layernorm") or (
            self.kind == "final-only-rms" and k >= self.loops
        )

    def forward(self, state: Tensor, k: int) -> Tensor:
        if not self.normalizes(k):
            return state
        if self.kind == "layernorm":
            return F.layer_norm(state, state.shape[-1:], self.gain, None, self.eps)
        return rms_norm(state, self.gain, self.eps)
