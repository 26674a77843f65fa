"""AdamW, as torch's own fused function.

Not as `torch.optim.AdamW`: its first use imports torch's whole compiler (2 s of a small run), and
the function accepts what the class hides: a flag on the device that skips a step, so that the host
need not check whether a gradient is finite.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from blindspot.config.spec import Training

MOMENTS = ("exp_avg", "exp_avg_sq")


class AdamW:
    """Moments and step counts of named parameters; `moments[m][name]` has the parameter's shape."""

    def __init__(self, parameters: Mapping[str, Tensor], settings: Training) -> None:
        self.parameters, self.settings = dict(parameters), settings
        self.moments = {
            m: {name: torch.zeros_like(p) for name, p in parameters.items()} for m in MOMENTS
        }
        self.counts = [
            torch.zeros((), dtype=torch.float32, device=p.device) for p in parameters.values()
        ]

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor], divisor: Tensor, skip: Tensor, rate: float) -> None:
        """Apply gradients / divisor at a learning rate, unless `skip` is 1; gradients are divided
        in place. The two are scalars on the device, the divisor of the gradients' type, `skip`
        float32."""
        s = self.settings
        # Here and not by `grad_scale` below, which would round the divisor to float32.
        torch._foreach_div_(list(gradients), divisor)
        adamw(
            list(self.parameters.values()),
            list(gradients),
            list(self.moments["exp_avg"].values()),
            list(self.moments["exp_avg_sq"].values()),
            [],
            self.counts,
            fused=True,
            found_inf=skip,
            amsgrad=False,
            beta1=s.betas[0],
            beta2=s.betas[1],
            lr=rate,
            weight_decay=s.weight_decay,
            eps=1e-8,
            maximize=False,
        )

    def set_applied(self, steps: int) -> None:
        for count in self.counts:
            count.fill_(steps)

    def named_moments(self) -> dict[str, Tensor]:
        """`exp_avg.<name>` and `exp_avg_sq.<name>`, as checkpoints name them."""
        return {f"{m}.{name}": t for m in MOMENTS for name, t in self.moments[m].items()}
