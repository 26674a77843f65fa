"""Schedules of the learning rate: a factor that is a function of (step, steps) alone.

So a run that is resumed needs no state of it, and a compiled step knows nothing of it. Imports no
torch.
"""

import math
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from blindspot.settings import Settings

Share = Annotated[float, Field(ge=0, le=1)]


class Schedule(Settings):
    """The learning rate's course; shares are of all steps. With s = step / steps, from 0:

    warmup   up to `training.learning_rate` in equal steps, then constant
    cosine   the same, then down to `final` of it along half a cosine, which ends with the run
    wsd      the same (warm-up), then constant (stable), then in the last `decay` linearly to
             `final` of it (decay)
    """

    kind: Literal["warmup", "cosine", "wsd"]
    warmup: Share = 0.0
    #: Of `wsd` alone.
    decay: Share | None = None
    #: What is left of the rate at the end; of `cosine` and `wsd`. null: 0.
    final: Share | None = None

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if (self.kind == "wsd") != (self.decay is not None):
            raise ValueError(
                f"schedule {self.kind} with decay {self.decay}: a share of the steps for wsd, "
                f"0.2 for instance, and null for all others"
            )
        if self.kind == "warmup" and self.final is not None:
            raise ValueError(f"schedule warmup with final {self.final}: it stays at the top; null")
        if self.warmup + (self.decay or 0) > 1:
            raise ValueError(
                f"schedule wsd with warmup {self.warmup} and decay {self.decay}: together more "
                f"than all steps"
            )
        return self

    def factor(self, step: int, steps: int) -> float:
        """What the rate of step number `step` (from 0) of `steps` is multiplied by."""
        rise = round(self.warmup * steps)
        if step < rise:
            return (step + 1) / rise
        if self.kind == "warmup":
            return 1.0
        final = self.final or 0.0
        if self.kind == "cosine":
            done = (step - rise) / (steps - rise)
            return final + (1 - final) * (1 + math.cos(math.pi * done)) / 2
        fall = round((self.decay or 0.0) * steps)
        done = max(0, step - (steps - fall)) / max(1, fall)
        return final + (1 - final) * (1 - done)
