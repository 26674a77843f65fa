"""Cells: one condition of the ablation each, and what a cell lays over the study's own settings.

A cell may say anything that decides a run: its number of loops, and under `model` and `training`
any setting that the study, or the size, has there. What it does not say is the study's.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, ValidationError

from blindspot.config.explain import faults
from blindspot.config.spec import (
    Alpha,
    Dropout,
    Interloop,
    Objective,
    Penalty,
    Placement,
    Readout,
    Recurrence,
    Shape,
    Training,
)
from blindspot.settings import Extent, Neutral, NonNegative, Positive, Seed, Settings, canonical

Kind = TypeVar("Kind", bound=Settings)


class Model(Recurrence):
    """What all cells and sizes share, but where a cell says otherwise."""

    loops: Extent = 4
    dropout: Dropout = Dropout()
    init_std: Positive | None = None
    norm_eps: NonNegative = 1e-6


class Cell(Settings):
    """One condition of the ablation: loss placement x readout x controls."""

    loss: Placement
    readout: Readout
    #: Exponent of the readout `power`.
    alpha: Annotated[Alpha | None, Neutral(None)] = None
    #: Whether that exponent is learned, from `alpha` on.
    learned_alpha: Annotated[bool, Neutral(False)] = False
    penalty: Penalty | None = None
    interloop: Interloop = "none"
    #: RMS of the state between loops, for the rule `reset`.
    interloop_scale: Annotated[Positive | None, Neutral(None)] = None
    #: Weights of the K losses of `per-loop`.
    weights: Annotated[tuple[Positive, ...] | None, Neutral(None)] = None
    z_loss: Annotated[NonNegative, Neutral(0.0)] = 0.0
    random_loops: Annotated[bool, Neutral(False)] = False
    #: Overrides `model.init_std`; "default" is PyTorch's initialization.
    init_std: Positive | Literal["default"] | None = None
    #: Seeds of this cell, in the place of the size's and the grid's.
    seeds: Annotated[tuple[Seed, ...] | None, Neutral(None)] = None
    #: The cell's own K.
    loops: Annotated[Extent | None, Neutral(None)] = None
    #: Laid over the study's `model`, and over d_model, layers and heads of the size.
    model: Annotated[dict[str, Any], Neutral({})] = Field(default_factory=dict)
    #: Laid over the study's `training`; naming steps or epochs takes the place of the other.
    training: Annotated[dict[str, Any], Neutral({})] = Field(default_factory=dict)

    def trained(self, study: Training, where: str = "") -> Training:
        """The study's training as this cell has it. Raises ValueError, which names the key."""
        over = dict(self.training)
        if len(length := {"steps", "epochs"} & over.keys()) == 1:
            over = dict.fromkeys({"steps", "epochs"} - length) | over
        return _laid(study, over, f"{where}training")

    def shared(self, study: Model, where: str = "") -> Model:
        """The study's model as this cell has it. Raises ValueError, which names the key."""
        for key in ("loops", "init_std"):
            if key in self.model and getattr(self, key) is not None:
                raise ValueError(f"{where}model.{key}: the cell says {key} itself; leave one out")
        over = {key: value for key, value in self.model.items() if key not in Shape.model_fields}
        if self.loops is not None:
            over["loops"] = self.loops
        return _laid(study, over, f"{where}model")

    def shaped(self, size: Shape, where: str = "") -> Shape:
        """Width, layers and heads of a size as this cell has it."""
        own = {key: getattr(size, key) for key in Shape.model_fields}
        over = {key: value for key, value in self.model.items() if key in own}
        return _laid(Shape(**own), over, f"{where}model")

    def initial(self, study: Model) -> float | None:
        """Standard deviation of the initialization; None is PyTorch's default."""
        if self.init_std == "default":
            return None
        return self.init_std if self.init_std is not None else self.shared(study).init_std

    @property
    def objective(self) -> Objective:
        return Objective(**{name: getattr(self, name) for name in Objective.model_fields})

    def described(self, study: Model) -> dict[str, Any]:
        """The cell as published results describe it: with its own K, and `init_std` only where it
        is not the study's."""
        value = self.model_dump(mode="json", exclude={"seeds"})
        if "init_std" in self.model:
            value["init_std"] = self.model["init_std"] or "default"
        rest = {key: x for key, x in self.model.items() if key not in ("loops", "init_std")}
        return value | {"loops": self.shared(study).loops, "model": rest}


def but_initialization(described: Mapping[str, Any]) -> str:
    """What a cell is but for its name, its initialization and its learning rate, of `described`:
    equal for cells that are compared under two initializations. Each may have a rate of its own,
    since one that suits both is no fair one for either."""
    rest = {key: x for key, x in described.items() if key not in ("name", "init_std", "training")}
    over = described.get("training") or {}
    rest["training"] = {key: x for key, x in over.items() if key != "learning_rate"}
    return canonical(rest)


def _laid(base: Kind, over: Mapping[str, Any], where: str) -> Kind:
    """`base` with `over` laid over it, key by key, also within maps."""
    values = base.model_dump(mode="json")
    try:
        return type(base).model_validate(_merged(values, over))
    except ValidationError as error:
        raise ValueError("; ".join(faults(error, where))) from None


def _merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        old = base.get(key)
        both = isinstance(value, Mapping) and isinstance(old, Mapping)
        merged[key] = _merged(old, value) if both else value  # type: ignore[arg-type]
    return merged
