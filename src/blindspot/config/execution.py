"""How a run is executed: what changes its speed, memory and safety, and never its mathematics.

None of this is part of a run's identity. Imports no torch.
"""

from typing import Annotated, Literal

from blindspot.settings import Count, Neutral, Positive, Settings

#: Experiment trackers that a training can tell of itself (training/tracking.py).
Tracking = Literal["trackio", "wandb", "mlflow"]


class Execution(Settings):
    """`execution:` of a study's config."""

    #: State is saved every so many minutes, and on SIGTERM, SIGHUP, SIGUSR2 and Ctrl-C;
    checkpoint_minutes: Positive = 5
    #: and, where given, every so many steps.
    checkpoint_steps: Count | None = None
    #: Keep only the input of each layer for the backward pass and compute the rest again: a third
    #: more work, a fraction of the memory.
    recompute: bool = False
    #: Compile all loops as one graph; auto: on a GPU. It pays after some minutes of training.
    compile: Literal["auto"] | bool = "auto"
    #: Deterministic algorithms on a GPU too (the CPU's are anyway); slower.
    deterministic: bool = False
    #: Tell an experiment tracker, too, which must be installed; into work/tracking/, offline.
    tracking: Annotated[Tracking | None, Neutral(None)] = None
