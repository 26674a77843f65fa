"""What a study is made of: typed settings, and the specification that names a run.

Every model here is frozen and refuses unknown keys. A `RunSpec` holds everything that decides a
run's weights and nothing else: no path, device, thread count or display name. Its canonical JSON
is hashed; the hash is part of the run's folder, so a changed setting is another folder.

Imports no torch: Snakemake parses this at the start of every job.
"""

import hashlib
import json
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from blindspot.revisions import DATA_REVISION, TRAINING_REVISION

# Strict: 4.0, "4" and true are not counts. A float may be written 3e-4, which YAML reads as text.
Count = Annotated[int, Field(strict=True, ge=1)]
Seed = Annotated[int, Field(strict=True, ge=0, lt=2**63)]
Probability = Annotated[float, Field(ge=0, lt=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
#: Names become folders, job names and labels: no character that a file system, Slurm's percent
#: patterns or LaTeX reads as its own.
Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]{0,39}$")]


def canonical(value: Any) -> str:
    """Canonical JSON: sorted keys, no spaces. Equal settings give equal text, however written."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def digest(value: Any, length: int = 8) -> str:
    """The first `length` hex digits of the SHA-256 of the canonical JSON of `value`."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()[:length]


class Settings(BaseModel):
    """Frozen, and a misspelt key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    def identity(self) -> dict[str, Any]:
        """The JSON value that goes into hashes."""
        return self.model_dump(mode="json")


# --- data ------------------------------------------------------------------------------------


class EnwikiSample(Settings):
    """The Wikipedia excerpt that the gensim wheel carries: real English without a data hub."""

    kind: Literal["enwiki-sample"]

    @property
    def label(self) -> str:
        return "enwiki-sample"


class HubCorpus(Settings):
    """A data set of the Hugging Face hub, or a local folder of the same layout (`path`)."""

    kind: Literal["hub"]
    name: str
    config: str
    revision: str = Field(min_length=7)
    column: str = "text"
    path: str | None = None

    @property
    def label(self) -> str:
        return self.config

    def identity(self) -> dict[str, Any]:
        # Where the rows lie does not change them: the revision names the content.
        return self.model_dump(mode="json", exclude={"path"})


class LocalCorpus(Settings):
    """Text files of your own, one file or a list a split; UTF-8, documents as they stand."""

    kind: Literal["local"]
    name: Name = "local"
    train: str | list[str]
    validation: str | list[str]
    test: str | list[str]
    #: SHA-256 over the files' content; the study fills it in, a config may pin it.
    sha256: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")

    @property
    def label(self) -> str:
        return self.name

    def files(self, split: Literal["train", "validation", "test"]) -> list[str]:
        value: str | list[str] = getattr(self, split)
        return [value] if isinstance(value, str) else list(value)

    def identity(self) -> dict[str, Any]:
        return {"kind": "local", "sha256": self.sha256}


Corpus = Annotated[EnwikiSample | HubCorpus | LocalCorpus, Field(discriminator="kind")]


class BpeTokenizer(Settings):
    """Byte-level BPE, fit on the train split; loses nothing."""

    kind: Literal["bpe"]
    vocab_size: Annotated[int, Field(strict=True, ge=257, le=2**32)]


#: The paper's words.
DEFAULT_PATTERN = r"\s+|[A-Za-z0-9_]+|[^\w\s]"


class WordsTokenizer(Settings):
    """The paper's words: pattern, most frequent words, the rest UNK. Loses rare words."""

    kind: Literal["words"]
    vocab_size: Annotated[int, Field(strict=True, ge=2, le=2**32)]
    min_frequency: Count = 2
    pattern: str = DEFAULT_PATTERN
    #: The release fits on validation text too.
    fit: Literal["train", "train+validation"] = "train"


Tokenizer = Annotated[BpeTokenizer | WordsTokenizer, Field(discriminator="kind")]


class Windows(Settings):
    """How training reads the stream: windows of `length` tokens, one every `stride` tokens."""

    length: Count
    stride: Count

    @model_validator(mode="after")
    def _stride(self) -> Self:
        if self.stride > self.length:
            raise ValueError(
                f"stride {self.stride} is greater than length {self.length}, so tokens between "
                f"windows would never be read; use at most {self.length}"
            )
        return self


class DataSpec(Settings):
    """What decides the token files."""

    revision: int = DATA_REVISION
    corpus: Corpus
    tokenizer: Tokenizer

    def identity(self) -> dict[str, Any]:
        return {
            "revision": self.revision,
            "corpus": self.corpus.identity(),
            "tokenizer": self.tokenizer.identity(),
        }

    @property
    def name(self) -> str:
        """Folder of the token files: `{corpus}-{hash8}`."""
        return f"{self.corpus.label}-{digest(self.identity())}"


# --- model and objective ---------------------------------------------------------------------

Readout = Literal["rms", "layernorm", "raw", "final-only-rms"]
Placement = Literal["terminal", "per-loop"]


class Dropout(Settings):
    """Rate, and where: the embedding sum, the attention weights, each branch's output.

    Masks are drawn anew at every layer of every loop.
    """

    rate: Probability = 0.1
    at: tuple[Literal["embedding", "attention", "residual"], ...] = (
        "embedding",
        "attention",
        "residual",
    )


class Shape(Settings):
    """Width and depth of the shared stack."""

    d_model: Count
    layers: Count
    heads: Count

    @model_validator(mode="after")
    def _heads(self) -> Self:
        if self.d_model % self.heads:
            fits = [h for h in range(1, self.d_model + 1) if self.d_model % h == 0 and h <= 64]
            raise ValueError(
                f"heads {self.heads} does not divide d_model {self.d_model}; use one of {fits}"
            )
        return self


class ModelSpec(Shape):
    """The looped decoder: one stack of `layers` blocks, applied `loops` times."""

    loops: Count
    vocab_size: Count
    context: Count
    readout: Readout
    #: Norm of the state between loops: H_k is divided by its RMS before loop k + 1, without a gain.
    interloop: Literal["none", "rms"] = "none"
    dropout: Dropout = Dropout()
    #: null is PyTorch's default initialization (the tied embedding is then N(0, 1)); a number is
    #: the standard deviation of a normal one, with residual outputs scaled by 1/sqrt(2 layers).
    init_std: Positive | None = None
    norm_eps: NonNegative = 1e-6

    def architecture(self) -> dict[str, Any]:
        """What decides the speed of a forward pass: no dropout, no initialization."""
        return self.model_dump(mode="json", exclude={"dropout", "init_std"})


class Penalty(Settings):
    """weight x mean over loops and tokens of |H_k|^2 / d (mean-square) or |H_k|^2 (sum-square)."""

    kind: Literal["mean-square", "sum-square"] = "mean-square"
    weight: Positive


class Objective(Settings):
    """Where cross-entropy is placed, and the norm penalty."""

    loss: Placement
    penalty: Penalty | None = None


class Skip(Settings):
    """Leave out a step that is not finite, up to `skip` of them in a row."""

    skip: Count


class Training(Settings):
    """AdamW with a constant learning rate."""

    #: Exactly one of the two: optimizer steps, or passes over the windows.
    steps: Count | None = None
    epochs: Positive | None = None
    learning_rate: Positive = 3e-4
    betas: tuple[Probability, Probability] = (0.9, 0.999)
    weight_decay: NonNegative = 0.01
    clip: Positive = 1.0
    precision: Literal["bf16", "float32"] = "bf16"
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
    batch: Count
    seed: Seed

    @property
    def hash(self) -> str:
        return digest(self.identity())

    def canonical(self) -> str:
        """The text that travels to the trainer; `RunSpec.parse` reads it back to the same hash."""
        return canonical(self.identity())

    @classmethod
    def parse(cls, text: str) -> Self:
        return cls.model_validate_json(text)


# --- measurement -----------------------------------------------------------------------------


class Measurement(Settings):
    """What is measured on a run's weights; changing it re-measures and never retrains.

    Budgets are counts of tokens, rounded down to whole windows (at least one).
    """

    #: Tokens of context, at least, that a scored token of protocol `full` has (but at the start).
    min_context: Annotated[int, Field(strict=True, ge=0)] = 128
    #: Exits that are scored besides 1..K; those beyond the trained K are extrapolation.
    depths_beyond: tuple[Count, ...] = (8,)
    #: Tokens of the validation split that the norm statistics read.
    norm_tokens: Count = 65536
    #: Tokens of the validation split for gradients and updates, in float64.
    probe_tokens: Count = 8192
    #: Loops that the updates are followed for.
    update_loops: Annotated[int, Field(strict=True, ge=2)] = 30
    #: Tokens for clamps (validation) and halting (of each split), in float32.
    intervention_tokens: Count = 32768
    #: Perplexity relative to depth K's that halting is calibrated for.
    halting_target: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 1.01


class Throughput(Settings):
    """How throughput is timed; one session a size times all its architectures in turn."""

    batch: Count = 32
    warmup: Count = 3
    repeats: Count = 20
