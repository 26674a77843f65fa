"""What a study is made of: typed settings, and the specification that names a run.

Every model here is frozen and refuses unknown keys. A `RunSpec` holds everything that decides a
run's weights and nothing else: no path, device, thread count or display name. Its canonical JSON
is hashed; the hash is part of the run's folder, so a changed setting is another folder.

Imports no torch: Snakemake parses this at the start of every job.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from blindspot.config.revisions import TRAINING_REVISION
from blindspot.config.schedules import Schedule
from blindspot.settings import (
    Count,
    Extent,
    Neutral,
    NonNegative,
    Positive,
    Probability,
    Seed,
    Settings,
    Vocabulary,
    canonical,
    digest,
)


class Windows(Settings):
    """How training reads the stream: windows of `length` tokens, one every `stride` tokens."""

    length: Extent
    stride: Extent

    @model_validator(mode="after")
    def _stride(self) -> Self:
        if self.stride > self.length:
            raise ValueError(
                f"stride {self.stride} is greater than length {self.length}, so tokens between "
                f"windows would never be read; use at most {self.length}"
            )
        return self


# --- model and objective ---------------------------------------------------------------------

Readout = Literal["rms", "layernorm", "raw", "final-only-rms", "power"]
#: The exponent of the readout `power`: 0 would be raw, 1 RMSNorm.
Alpha = Annotated[float, Field(gt=0, lt=1)]
Placement = Literal["terminal", "per-loop"]


#: What is done to the state before the next loop receives it (lm/recurrence.py).
Interloop = Literal["none", "rms", "rms-gain", "reset"]
Clamp = Literal["none", "through", "stopped"]

Place = Literal["embedding", "attention", "residual", "attention-output", "mlp-output"]
PLACES: tuple[Place, ...] = ("embedding", "attention", "residual")
#: What `residual` stands for: the outputs of a layer's two branches.
BRANCHES: tuple[Place, Place] = ("attention-output", "mlp-output")


def _set(places: tuple[Place, ...]) -> tuple[Place, ...]:
    chosen = set(places)
    if chosen >= set(BRANCHES):
        chosen.add("residual")
    if "residual" in chosen:
        chosen -= set(BRANCHES)
    return tuple(place for place in PLACES + BRANCHES if place in chosen)


class Dropout(Settings):
    """Rate, and where: the embedding sum, the attention weights, the output of each branch.

    `residual` is `attention-output` and `mlp-output` together; who names both has said `residual`.
    Masks are drawn anew at every layer of every loop. The places are a set: their order is none of
    a run's identity.
    """

    rate: Probability = 0.1
    at: Annotated[tuple[Place, ...], AfterValidator(_set)] = PLACES

    @property
    def active(self) -> bool:
        """Whether anything is dropped at all."""
        return self.rate > 0 and bool(self.at)

    def rate_at(self, place: Place) -> float:
        """The rate at one place; 0 where nothing is dropped."""
        covered = place in self.at or (place in BRANCHES and "residual" in self.at)
        return self.rate if covered else 0.0


class Shape(Settings):
    """Width and depth of the shared stack."""

    d_model: Extent
    layers: Extent
    heads: Extent

    @model_validator(mode="after")
    def _heads(self) -> Self:
        if self.d_model % self.heads:
            fits = [h for h in range(1, 65) if self.d_model % h == 0]
            raise ValueError(
                f"heads {self.heads} does not divide d_model {self.d_model}; use one of {fits}"
            )
        return self


class Recurrence(Settings):
    """How loops follow one another, beside the inter-loop norm. All are off by default, and they
    compose: x is what loop k receives, F the stack.

    H_k = carry x + (F(x) - x), then rescaled to |H_1| by the clamp; x has H_0 added by injection.
    """

    #: The share of what it receives that a loop carries on; null is 1.
    carry: Annotated[Annotated[float, Field(gt=0, lt=1)] | None, Neutral(None)] = None
    #: Loops after the first are rescaled to the norm of H_1, token by token: with the gradient
    #: through the factor, or with the factor as a constant (`stopped`).
    clamp: Annotated[Clamp, Neutral("none")] = "none"
    #: H_0 is added to what each loop after the first receives.
    inject: Annotated[bool, Neutral(False)] = False
    #: What a branch writes into the stream is divided by K.
    divide_branches: Annotated[bool, Neutral(False)] = False
    #: What a branch writes into the stream is normalized, with a gain (post-norm inside blocks).
    sandwich: Annotated[bool, Neutral(False)] = False

    def recurrence(self) -> dict[str, Any]:
        """The settings of this class alone."""
        return {name: getattr(self, name) for name in Recurrence.model_fields}


class ModelSpec(Shape, Recurrence):
    """The looped decoder: one stack of `layers` blocks, applied `loops` times."""

    loops: Extent
    vocab_size: Vocabulary
    context: Extent
    readout: Readout
    #: Norm of the state between loops: H_k is divided by its RMS before loop k + 1; `rms-gain`
    #: multiplies it by a trained gain as well, one for all loops, as the paper's release does.
    #: `reset` gives it the RMS `interloop_scale`, H_0 too.
    interloop: Interloop = "none"
    dropout: Dropout = Dropout()
    #: null is PyTorch's default initialization (the tied embedding is then N(0, 1)); a number is
    #: the standard deviation of a normal one, with residual outputs scaled by 1/sqrt(2 layers).
    init_std: Positive | None = None
    norm_eps: NonNegative = 1e-6
    #: Of the readout `power` alone; with `learned_alpha` its exponent begins there.
    alpha: Annotated[Alpha | None, Neutral(None)] = None
    learned_alpha: Annotated[bool, Neutral(False)] = False
    #: Of the inter-loop rule `reset` alone: the RMS that the state is given.
    interloop_scale: Annotated[Positive | None, Neutral(None)] = None

    @property
    def gained(self) -> bool:
        """Whether the readout has a gain of d parameters."""
        return self.readout != "raw"

    @model_validator(mode="after")
    def _exponent(self) -> Self:
        if (self.readout == "power") != (self.alpha is not None):
            raise ValueError(
                f"readout {self.readout} with alpha {self.alpha}: power needs an exponent between "
                f"0 and 1, 0.5 for instance, and no other readout has one"
            )
        if self.learned_alpha and self.readout != "power":
            raise ValueError(f"learned_alpha: readout {self.readout} has no exponent to learn")
        return self

    @model_validator(mode="after")
    def _recurrence(self) -> Self:
        if (self.interloop == "reset") != (self.interloop_scale is not None):
            raise ValueError(
                f"interloop {self.interloop} with interloop_scale {self.interloop_scale}: reset "
                f"needs the RMS that the state is given, and no other rule has one"
            )
        if self.clamp != "none" and self.interloop != "none":
            raise ValueError(
                f"clamp {self.clamp} with interloop {self.interloop}, which sets the scale that "
                f"the next loop receives in any case; use one of them"
            )
        acting = {"clamp": self.clamp != "none", "inject": self.inject,
                  "divide_branches": self.divide_branches}  # fmt: skip
        for name, acts in acting.items():
            if acts and self.loops == 1:
                raise ValueError(f"{name} with loops 1 would do nothing; leave it out")
        return self

    @model_validator(mode="after")
    def _gain(self) -> Self:
        if self.interloop == "rms-gain" and self.loops == 1:
            raise ValueError(
                "interloop rms-gain with loops 1 has a gain that would never be trained; use none"
            )
        return self

    def architecture(self) -> dict[str, Any]:
        """What decides the speed of a forward pass: no dropout, no initialization."""
        no_speed = {"dropout", "init_std"}
        return {key: value for key, value in self.identity().items() if key not in no_speed}


class Penalty(Settings):
    """weight x mean over loops and tokens of |H_k|^2 / d (mean-square), |H_k|^2 (sum-square), or
    (|H_k| / sqrt(d) - target)^2 (target)."""

    kind: Literal["mean-square", "sum-square", "target"] = "mean-square"
    weight: Positive
    #: Of the kind `target` alone: the RMS that states are drawn to.
    target: Annotated[Positive | None, Neutral(None)] = None

    @model_validator(mode="after")
    def _target(self) -> Self:
        if (self.kind == "target") != (self.target is not None):
            raise ValueError(
                f"penalty {self.kind} with target {self.target}: the kind target needs the RMS "
                f"that states are drawn to, and no other kind has one"
            )
        return self


class Objective(Settings):
    """Where cross-entropy is placed, and what is asked beside it."""

    loss: Placement
    penalty: Penalty | None = None
    #: Of the loss `per-loop`: weights of CE_1..CE_K, which count by their share of the sum.
    weights: Annotated[tuple[Positive, ...] | None, Neutral(None)] = None
    #: Weight of the mean of log^2 Z over supervised depths, which count by `weights`, and tokens.
    z_loss: Annotated[NonNegative, Neutral(0.0)] = 0.0
    #: Each step is done with a K of its own, drawn from 1..K alike.
    random_loops: Annotated[bool, Neutral(False)] = False

    @model_validator(mode="after")
    def _weights(self) -> Self:
        if self.weights and self.loss != "per-loop":
            raise ValueError("weights: the loss terminal has one cross-entropy; leave them out")
        if self.weights and self.random_loops:
            raise ValueError("weights of all K losses, with random_loops: use one of them")
        return self


class Skip(Settings):
    """Leave out a step that is not finite, up to `skip` of them in a row."""

    skip: Extent


class Training(Settings):
    """AdamW; the learning rate is constant, or the highest of its schedule."""

    #: Exactly one of the two: optimizer steps, or passes over the windows.
    steps: Count | None = None
    epochs: Annotated[float, Field(gt=0, le=1e6)] | None = None
    learning_rate: Positive = 3e-4
    betas: tuple[Probability, Probability] = (0.9, 0.999)
    weight_decay: NonNegative = 0.01
    clip: Positive = 1.0
    precision: Literal["bf16", "float32"] = "bf16"
    schedule: Annotated[Literal["constant"] | Schedule, Neutral("constant")] = "constant"
    #: When a loss or gradient is not finite: `stop` ends the run before that step is applied,
    #: {skip: n} leaves the step out, and ends the run at more than n in a row.
    nonfinite: Literal["stop"] | Skip = "stop"
    #: Steps between rows of the trajectory, and between validation passes.
    log_every: Count = 100
    validate_every: Count = 1000
    #: Windows (no overlap) of the validation split that a validation pass reads.
    validation_windows: Count = 64

    @model_validator(mode="after")
    def _length(self) -> Self:
        if (self.steps is None) == (self.epochs is None):
            raise ValueError(
                f"give either steps or epochs, not both or neither "
                f"(steps: {self.steps}, epochs: {self.epochs}); set the other one to null"
            )
        return self

    def rate(self, step: int, steps: int) -> float:
        """The learning rate of step number `step` (from 0) of `steps`."""
        if self.schedule == "constant":
            return self.learning_rate
        return self.learning_rate * self.schedule.factor(step, steps)

    @property
    def skip(self) -> int:
        """Steps in a row that may be left out because they are not finite."""
        return self.nonfinite.skip if isinstance(self.nonfinite, Skip) else 0


class RunSpec(Settings):
    """Everything that decides a run's weights and trajectory."""

    revision: int = TRAINING_REVISION
    #: `DataSpec.identity()`: content, never where it lies.
    data: dict[str, Any]
    windows: Windows
    model: ModelSpec
    objective: Objective
    training: Training
    #: Sequences a step, over all devices together.
    batch: Extent
    seed: Seed

    @model_validator(mode="after")
    def _objective(self) -> Self:
        K, given = self.model.loops, self.objective.weights
        if given is not None and len(given) != K:
            raise ValueError(f"weights {list(given)}: {len(given)} for {K} losses; give {K}")
        if self.objective.random_loops and K == 1:
            raise ValueError("random_loops with loops 1 draws from one number; leave it out")
        if self.objective.random_loops and self.model.readout == "final-only-rms":
            raise ValueError(
                "random_loops with readout final-only-rms, whose last loop is always K: a step "
                "that ends before it would be read raw; use another readout"
            )
        return self

    @property
    def hash(self) -> str:
        return digest(self.identity())

    def steps(self, windows: int) -> int:
        """Optimizer steps on so many windows: as given, or as many whole batches as `epochs` passes
        hold."""
        if self.training.steps is not None:
            return self.training.steps
        assert self.training.epochs is not None
        return max(1, int(self.training.epochs * windows) // self.batch)

    def canonical(self) -> str:
        """The text that travels to the trainer; `RunSpec.parse` reads it back to the same hash."""
        return canonical(self.identity())

    @classmethod
    def parse(cls, text: str) -> Self:
        return cls.model_validate_json(text)


# --- measurement -----------------------------------------------------------------------------


class Measurement(Settings):
    """What is measured on a run's weights; changing it re-measures and never retrains. Each
    measurement names in its declaration (declared/) which of these it reads: of those that do not
    read what was changed, nothing is made anew.

    Budgets are counts of tokens, rounded down to whole windows (at least one).
    """

    #: Tokens of context, at least, that a scored token of protocol `full` has (but at the start).
    min_context: Annotated[int, Field(strict=True, ge=0, le=2**20)] = 128
    #: Exits that are scored besides 1..K; those beyond the trained K are extrapolation.
    depths_beyond: tuple[Extent, ...] = (8,)
    #: Tokens of the validation split that the norm statistics read.
    norm_tokens: Count = 65536
    #: Tokens of the validation split for gradients and updates, in float64.
    probe_tokens: Count = 8192
    #: Loops that the updates are followed for.
    update_loops: Annotated[int, Field(strict=True, ge=2, le=2**20)] = 30
    #: Tokens for clamps (validation) and halting (of each split), in float32.
    intervention_tokens: Count = 32768
    #: Perplexity relative to depth K's that halting is calibrated for.
    halting_target: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 1.01


class Throughput(Settings):
    """How throughput is timed; one session a size times all its architectures in turn."""

    batch: Extent = 32
    warmup: Extent = 3
    repeats: Extent = 20
