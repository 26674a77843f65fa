"""What is measured: the paper's two sizes and its cells, or toys of the same form."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from blindspot.config.revisions import TRAINING_REVISION
from blindspot.config.spec import ModelSpec, Objective, RunSpec

#: Readout and objective of the cells that are used here, as in config.yaml (a test compares).
CELLS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "perloop-rms": ("rms", {"loss": "per-loop"}),
    "perloop-raw": ("raw", {"loss": "per-loop"}),
    "perloop-rms-penalty": (
        "rms",
        {"loss": "per-loop", "penalty": {"kind": "mean-square", "weight": 0.01}},
    ),
    "terminal-rms": ("rms", {"loss": "terminal"}),
}


#: As in config.yaml, too.
DROPOUT = {"rate": 0.1, "at": ("embedding", "attention", "mlp-output")}


@dataclass(frozen=True)
class Training:
    """One short training: a cell and its initialization (None: PyTorch's default)."""

    cell: str
    init_std: float | None = None

    @property
    def name(self) -> str:
        return self.cell if self.init_std is None else f"{self.cell}-std{self.init_std}"


@dataclass(frozen=True)
class Plan:
    """Sizes and amounts of work."""

    #: Shape and batch by name.
    sizes: Mapping[str, Mapping[str, int]]
    loops: int
    vocab: int
    context: int
    stride: int
    #: Layers of the small models that correctness is also checked on, and their batch.
    small_layers: int
    small_batch: int
    #: Rounds of alternating timings; seconds of one timing, at least.
    rounds: int
    at_least: float
    #: Rows and columns of the square product that the machine's rate is read from.
    square: int
    #: Forward passes: batch, and timed ones.
    forward_batch: int
    forwards: int
    #: Tokens that the measurements read: norms, gradients, perplexity.
    norm_tokens: int
    probe_tokens: int
    scored_tokens: int
    #: Trainings shorter than the least number of steps say nothing; more than the most, no more.
    least_steps: int
    most_steps: int
    learning_rate: float
    #: What torch.compile ends in; toys on a CPU stop before machine code, which takes a minute.
    backend: str

    def model(self, size: str, cell: str, **changes: Any) -> ModelSpec:
        """The model of a cell at a size, as the paper has it; `changes` to its settings."""
        shape = {k: v for k, v in self.sizes[size].items() if k != "batch"}
        given: dict[str, Any] = {
            "loops": self.loops,
            "vocab_size": self.vocab,
            "context": self.context,
        }
        given |= {"dropout": DROPOUT}
        return ModelSpec.model_validate({**shape, **given, "readout": CELLS[cell][0], **changes})

    def run(
        self,
        size: str,
        cell: str,
        batch: int | None = None,
        data: Mapping[str, Any] | None = None,
        **model: Any,
    ) -> RunSpec:
        """The run of a cell at a size; `data` is the identity of its tokens, where it has any."""
        settings = {"steps": self.most_steps, "learning_rate": self.learning_rate}
        return RunSpec.model_validate(
            {
                "revision": TRAINING_REVISION,
                "data": data or {},
                "windows": {"length": self.context, "stride": self.stride},
                "model": self.model(size, cell, **model),
                "objective": Objective.model_validate(CELLS[cell][1]),
                "training": settings,
                "batch": batch or self.sizes[size]["batch"],
                "seed": 42,
            }
        )


#: Trainings in the order of their worth: whether the drift is the initialization's comes first.
TRAININGS = (
    Training("perloop-rms"),
    Training("perloop-rms", 0.02),
    Training("perloop-raw"),
    Training("perloop-raw", 0.02),
    Training("perloop-rms-penalty"),
    Training("terminal-rms"),
)

FULL = Plan(
    sizes={
        "44m": {"d_model": 512, "layers": 8, "heads": 8, "batch": 64},
        "129m": {"d_model": 768, "layers": 12, "heads": 12, "batch": 32},
    },
    loops=4,
    vocab=20000,
    context=256,
    stride=128,
    small_layers=1,
    small_batch=8,
    rounds=5,
    at_least=0.4,
    square=8192,
    forward_batch=32,
    forwards=30,
    norm_tokens=65536,
    probe_tokens=8192,
    scored_tokens=1 << 18,
    least_steps=150,
    most_steps=3000,
    learning_rate=3e-4,
    backend="inductor",
)
TINY = Plan(
    sizes={
        "44m": {"d_model": 16, "layers": 1, "heads": 2, "batch": 4},
        "129m": {"d_model": 24, "layers": 1, "heads": 2, "batch": 2},
    },
    loops=2,
    vocab=270,
    context=16,
    stride=8,
    small_layers=1,
    small_batch=2,
    rounds=2,
    at_least=0.01,
    square=64,
    forward_batch=2,
    forwards=3,
    norm_tokens=256,
    probe_tokens=64,
    scored_tokens=512,
    least_steps=2,
    most_steps=12,
    learning_rate=3e-3,
    backend="aot_eager",
)
