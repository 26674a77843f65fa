"""Readouts: how a state H_k is transformed before the tied head.

A readout r is scale-invariant when r(a H) = r(H) for every a > 0. Through such a readout the
cross-entropy cannot see the norm of H: its gradient has no part along H (the visibility lemma).

    rms               H / rms(H) * gain          scale-invariant (up to eps)
    layernorm         (H - mean) / std * gain    scale-invariant (up to eps)
    raw               H                          sees the scale
    final-only-rms    raw for k < K, rms for k >= K (K the trained number of loops)
    power             H / rms(H)^alpha * gain    between raw (alpha 0) and rms (alpha 1): of degree
                                                 1 - alpha, r(a H) = a^(1 - alpha) r(H) (up to eps);
                                                 the exponent is given, or learned

One gain is shared by all depths. Raw has no gain, since a gain there would never get a gradient
(`ModelSpec.gained`). A new readout is a name in `config/spec.py` and an entry of `KINDS`.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from blindspot.config.spec import ModelSpec
from blindspot.config.spec import Readout as Name
from blindspot.lm.norm import rms_norm

Alpha = float | Tensor | None


@dataclass(frozen=True)
class Kind:
    """How a readout is applied at the depths where it is not raw, and whether that is blind."""

    #: r(H) of H (..., d), the gain (d,), eps and alpha (None but for `power`).
    apply: Callable[[Tensor, Tensor, float, Alpha], Tensor]
    scale_invariant: bool
    #: Raw at depths before K.
    at_last_only: bool = False


def _rms(x: Tensor, gain: Tensor, eps: float, _: Alpha) -> Tensor:
    return rms_norm(x, gain, eps)


def _layernorm(x: Tensor, gain: Tensor, eps: float, _: Alpha) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], gain, None, eps)


def _power(x: Tensor, gain: Tensor, eps: float, alpha: Alpha) -> Tensor:
    assert alpha is not None
    return x * (x.square().mean(-1, keepdim=True) + eps) ** (-alpha / 2) * gain


#: None: the state itself.
KINDS: dict[Name, Kind | None] = {
    "rms": Kind(_rms, scale_invariant=True),
    "layernorm": Kind(_layernorm, scale_invariant=True),
    "raw": None,
    "final-only-rms": Kind(_rms, scale_invariant=True, at_last_only=True),
    "power": Kind(_power, scale_invariant=False),
}


class Readout(nn.Module):
    """r(H_k) for depth k = 1, 2, ...; shapes (..., d) to (..., d)."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.kind = KINDS[spec.readout]
        self.loops, self.eps, self.alpha = spec.loops, spec.norm_eps, spec.alpha
        if spec.gained:
            self.gain = nn.Parameter(torch.ones(spec.d_model))
        if spec.learned_alpha:
            assert spec.alpha is not None
            # The exponent's logit, so that it stays between raw and RMSNorm.
            self.logit = nn.Parameter(torch.logit(torch.tensor([spec.alpha])))

    def _at(self, k: int) -> Kind | None:
        """The kind at depth k; None where the state itself is read."""
        kind = self.kind
        return None if kind is not None and kind.at_last_only and k < self.loops else kind

    def normalizes(self, k: int) -> bool:
        """Whether the readout at depth k is scale-invariant."""
        kind = self._at(k)
        return kind is not None and kind.scale_invariant

    def forward(self, state: Tensor, k: int) -> Tensor:
        kind = self._at(k)
        return state if kind is None else kind.apply(state, self.gain, self.eps, self.exponent)

    @property
    def exponent(self) -> Alpha:
        """The exponent of `power`: a number, or where it is learned a tensor (1,)."""
        return self.logit.sigmoid() if hasattr(self, "logit") else self.alpha
