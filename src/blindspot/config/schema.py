"""A study's config as it is validated: every key, its type, its default, and what fits what.

The cells that sweeps make, and the claims as they are judged, follow from it (sweeps.py,
studyclaims.py). A `Study` (study.py) is a config with its runs.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from blindspot.config.cells import Cell, Model
from blindspot.config.criteria import StudyClaim
from blindspot.config.dataspec import Corpus, Tokenizer
from blindspot.config.devices import listed
from blindspot.config.execution import Execution
from blindspot.config.localfiles import PathText
from blindspot.config.spec import Measurement, Shape, Throughput, Training, Windows
from blindspot.settings import Extent, Name, Neutral, NonNegative, Seed, Settings


class Size(Shape):
    """A model size. `seeds` overrides the grid's for this size, `cells` the study's."""

    NO_IDENTITY = frozenset({"gpus", "nodes"})

    batch: Extent
    seeds: tuple[Seed, ...] | None = None
    #: Only these cells are trained at this size.
    cells: Annotated[tuple[Name, ...] | None, Neutral(None)] = None
    #: Devices that train a run of this size together, and the nodes they are on. No part of its
    #: identity: the mathematics is that of one device.
    gpus: Extent = 1
    nodes: Extent = 1

    @model_validator(mode="after")
    def _shared(self) -> Self:
        if self.batch % self.gpus:
            raise ValueError(f"gpus {self.gpus} cannot share batch {self.batch} equally")
        if self.gpus % self.nodes:
            raise ValueError(f"gpus {self.gpus} cannot be on nodes {self.nodes} equally")
        return self


class Grid(Settings):
    seeds: tuple[Seed, ...] = Field(min_length=1)


class Sweep(Settings):
    """Cells, and the values of each key; of several keys all combinations."""

    cells: Annotated[tuple[Name, ...], Field(min_length=1)]
    over: Annotated[dict[str, Annotated[list[Any], Field(min_length=1)]], Field(min_length=1)]


class Forecast(Settings):
    """What `blindspot forecast` calculates with."""

    #: The GPU that hours are for, by a word of its name (config/devices.py). Without: the one that
    #: runs were recorded on, else an H200.
    device: Annotated[str, AfterValidator(listed)] | None = None
    #: Share of the GPU's peak that trainings are assumed to reach where none was timed.
    share: Annotated[float, Field(gt=0, le=1)] = 0.35
    #: Price of an hour of one device: a GPU, or a core where the study runs on the CPU.
    rate: NonNegative | None = None
    currency: str = "USD"
    #: Numbers of GPUs that wall times are given for.
    gpus: Annotated[tuple[Extent, ...], Field(min_length=1)] = (1,)


class Config(Settings):
    """The whole of a study's config, validated. Its identity is what published files depend on."""

    NO_IDENTITY = frozenset({"work", "results", "device", "runs", "reuse", "forecast", "execution"})

    study: Name
    work: PathText = "work"
    results: PathText = "results"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    corpus: Corpus
    tokenizer: Tokenizer
    windows: Windows
    sizes: Annotated[dict[Name, Size], Field(min_length=1)]
    cells: Annotated[dict[Name, Cell], Field(min_length=1)]
    #: Cells made from others by values of a key (config/sweeps.py).
    sweeps: Annotated[dict[Name, Sweep], Neutral({})] = Field(default_factory=dict)
    #: What this study claims, with its criteria (config/criteria.py). Without any, its ledger is
    #: that of the paper's claims.
    claims: Annotated[dict[Name, StudyClaim], Neutral({})] = Field(default_factory=dict)
    model: Model = Model()
    grid: Grid
    training: Training
    measurement: Measurement = Measurement()
    throughput: Throughput = Throughput()
    #: Never part of a run's identity.
    execution: Execution = Execution()
    forecast: Forecast = Forecast()
    #: `all`: what is missing is run. `finished`: publish what is there, run nothing.
    runs: Literal["all", "finished"] = "all"
    #: Whether finished runs stay: for all, or by cell ({perloop-raw: false}). Those that don't are
    #: trained and measured anew by each start of the workflow.
    reuse: bool | dict[Name, bool] = True

    @model_validator(mode="after")
    def _seeds(self) -> Self:
        for key, seeds in [("grid", self.grid.seeds)] + [
            (f"{kind}.{name}", owner.seeds)
            for kind, owners in (("sizes", self.sizes), ("cells", self.cells))
            for name, owner in owners.items()
            if owner.seeds
        ]:
            if len(set(seeds)) < len(seeds):
                raise ValueError(f"{key}.seeds {list(seeds)} names a seed twice")
        return self

    @model_validator(mode="after")
    def _reuse(self) -> Self:
        unknown = [] if isinstance(self.reuse, bool) else [*self.reuse.keys() - self.cells.keys()]
        if unknown:
            raise ValueError(
                f"reuse.{unknown[0]}: no cell of this study; use one of {', '.join(self.cells)}"
            )
        return self

    @model_validator(mode="after")
    def _cells(self) -> Self:
        for name, cell in self.cells.items():
            where = f"cells.{name}."
            cell.trained(self.training, where)
            cell.shared(self.model, where)
            for size in self.sizes.values():
                cell.shaped(size, where)
        for name, size in self.sizes.items():
            for unknown in set(size.cells or ()) - self.cells.keys():
                raise ValueError(
                    f"sizes.{name}.cells: the study has no cell {unknown}; "
                    f"use some of {', '.join(self.cells)}"
                )
        return self

    def cells_at(self, size: str) -> dict[str, Cell]:
        """The cells that are trained at a size, by name."""
        chosen = self.sizes[size].cells
        return {name: c for name, c in self.cells.items() if chosen is None or name in chosen}

    def seeds_of(self, size: str, cell: str) -> tuple[int, ...]:
        """The seeds that a cell is trained with at a size."""
        return self.cells[cell].seeds or self.sizes[size].seeds or self.grid.seeds

    @model_validator(mode="after")
    def _context(self) -> Self:
        if self.measurement.min_context >= self.windows.length:
            raise ValueError(
                f"measurement.min_context {self.measurement.min_context} leaves nothing to score "
                f"in windows.length {self.windows.length}; use less, half of it for instance"
            )
        return self
