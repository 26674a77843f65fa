"""From config files to a `Study`, and from a study to its runs.

A study file says what differs from the base file, `config.yaml`. Maps merge key by key, except
`cells`, `sizes`, `claims`, `corpus`, `tokenizer` and `grid.seeds`: a study that names them means
exactly those. Of the first three, a name without settings stands for the base's definition.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, ValidationError, model_validator

from blindspot.config import yamltext
from blindspot.config.cells import Cell, Model
from blindspot.config.dataspec import Corpus, DataSpec, FileTokenizer, LocalCorpus, Tokenizer
from blindspot.config.devices import listed
from blindspot.config.digests import Digests, identified, pinned
from blindspot.config.execution import Execution
from blindspot.config.explain import explain
from blindspot.config.localfiles import PathText
from blindspot.config.revisions import THROUGHPUT_REVISION
from blindspot.config.spec import (
    Measurement,
    ModelSpec,
    RunSpec,
    Shape,
    Throughput,
    Training,
    Windows,
)
from blindspot.config.studyclaims import StudyClaim, judged
from blindspot.config.sweeps import Sweep, expanded
from blindspot.errors import BlindspotError
from blindspot.settings import Extent, Name, Neutral, NonNegative, Seed, Settings, digest

#: Keys of which a later file replaces the whole value.
REPLACED = {"corpus", "tokenizer"}
#: Maps of the user's own names: a later file chooses the members; null takes the base's.
CHOSEN = {"cells", "sizes", "claims"}


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
    #: What this study claims, with its criteria (config/studyclaims.py). Without any, its ledger is
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


@dataclass(frozen=True)
class Run:
    """A cell x size x seed, and where its results belong."""

    size: str
    cell: str
    seed: int
    spec: RunSpec

    @property
    def name(self) -> str:
        """`{size}/{cell}/seed{n}-{hash8}`."""
        return f"{self.size}/{self.cell}/seed{self.seed}-{self.spec.hash}"


class Study:
    """A validated config with its runs, in the order of sizes, cells, seeds."""

    def __init__(self, config: Config, notes: Sequence[str] = ()) -> None:
        self.config = config
        #: What was understood in a way that whoever wrote the config should know of.
        self.notes = tuple(notes)

    @classmethod
    def load(
        cls, base: Path, overlays: Sequence[Path] = (), override: Mapping[str, Any] | None = None
    ) -> Self:
        """Read `base`, lay `overlays` and then `override` (from a command line) over it.

        Raises `BlindspotError` that names the file or key at fault.
        """
        values = laid_over(base, overlays, override or {})
        where = ", ".join(str(p) for p in [base, *overlays])
        return cls.of(values, where)

    @classmethod
    def of(cls, values: Mapping[str, Any], where: str = "config") -> Self:
        """Validate a plain mapping."""
        try:
            config = Config.model_validate(values)
            try:
                config = expanded(config) if config.sweeps else config
                judged(config)
            except ValueError as error:
                if isinstance(error, ValidationError):
                    raise
                raise BlindspotError(f"{where}: {error}") from None
            if isinstance(config.corpus, LocalCorpus):
                known = identified(config.corpus, _digests(config))
                config = config.model_copy(update={"corpus": known})
            if isinstance(config.tokenizer, FileTokenizer):
                chosen = pinned(config.tokenizer, _digests(config))
                config = config.model_copy(update={"tokenizer": chosen})
            study = cls(config, [*_expansions(values, config), *_left_out(config.corpus)])
            _ = study.runs
        except ValidationError as error:
            raise BlindspotError(explain(error, where)) from None
        return study

    @cached_property
    def data(self) -> DataSpec:
        return DataSpec(corpus=self.config.corpus, tokenizer=self.config.tokenizer)

    def model(self, size: Size, cell: Cell) -> ModelSpec:
        shared = cell.shared(self.config.model)
        return ModelSpec(
            **cell.shaped(size).model_dump(),
            loops=shared.loops,
            vocab_size=self.config.tokenizer.vocab_size,
            context=self.config.windows.length,
            readout=cell.readout,
            alpha=cell.alpha,
            learned_alpha=cell.learned_alpha,
            interloop=cell.interloop,
            interloop_scale=cell.interloop_scale,
            **shared.recurrence(),
            dropout=shared.dropout,
            init_std=cell.initial(self.config.model),
            norm_eps=shared.norm_eps,
        )

    @cached_property
    def runs(self) -> list[Run]:
        c = self.config
        return [
            Run(
                size_name,
                cell_name,
                seed,
                RunSpec(
                    data=self.data.identity(),
                    windows=c.windows,
                    model=self.model(size, cell),
                    objective=cell.objective,
                    training=cell.trained(c.training),
                    batch=size.batch,
                    seed=seed,
                ),
            )
            for size_name, size in c.sizes.items()
            for cell_name, cell in c.cells_at(size_name).items()
            for seed in c.seeds_of(size_name, cell_name)
        ]

    @property
    def remade(self) -> list[Run]:
        """Runs that are made anew although they may be finished (`reuse: false`)."""
        reuse = self.config.reuse
        if isinstance(reuse, bool):
            return [] if reuse else self.runs
        return [run for run in self.runs if not reuse.get(run.cell, True)]

    # Places. Results are small and kept; work may be lost and made again.

    @property
    def results(self) -> Path:
        return Path(self.config.results) / self.config.study

    @property
    def work(self) -> Path:
        return Path(self.config.work)

    @property
    def corpus(self) -> Path:
        """Folder of the corpus's documents; its name holds the content's identity."""
        corpus = self.config.corpus
        identity = {"revision": self.data.revision, "corpus": corpus.identity()}
        return self.work / "corpora" / f"{corpus.label}-{digest(identity)}"

    @property
    def tokens(self) -> Path:
        return self.work / "tokens" / self.data.name

    @property
    def tokenizer(self) -> Path | None:
        """The file of a tokenizer that is fetched from the hub, if there is one."""
        name = self.data.fetched_tokenizer
        return None if name is None else self.work / "tokenizers" / name / "tokenizer.json"

    def architectures(self, size: str) -> dict[str, ModelSpec]:
        """The distinct architectures of a size by label: cells that differ in loss share one."""
        found: dict[str, ModelSpec] = {}
        for name, cell in self.config.cells_at(size).items():
            found.setdefault(self.architecture(name), self.model(self.config.sizes[size], cell))
        return dict(sorted(found.items()))

    def architecture(self, cell: str) -> str:
        """The label of a cell's architecture."""
        chosen = self.config.cells[cell]
        norm = {"none": "", "rms": "+interloop", "rms-gain": "+interloop-gain", "reset": "+reset"}
        own, study = chosen.shared(self.config.model), self.config.model
        exponent = "" if chosen.alpha is None else f"{chosen.alpha:g}"
        exponent += "-learned" if chosen.learned_alpha else ""
        scale = "" if chosen.interloop_scale is None else f"{chosen.interloop_scale:g}"
        parts = [chosen.readout + exponent + norm[chosen.interloop] + scale]
        parts += [
            word if value is True else f"{word}{value}"
            for word, value in own.recurrence().items()
            if value != getattr(study, word)
        ]
        parts += [f"k{own.loops}"] if own.loops != study.loops else []
        parts += [f"eps{own.norm_eps:g}"] if own.norm_eps != study.norm_eps else []
        parts += [
            f"{key[0]}{chosen.model[key]}" for key in Shape.model_fields if key in chosen.model
        ]
        return "+".join(parts)

    def throughput_hash(self, size: str) -> str:
        return digest(
            {
                "revision": THROUGHPUT_REVISION,
                "settings": self.config.throughput.identity(),
                "precision": self.config.training.precision,
                "architectures": {
                    label: spec.architecture() for label, spec in self.architectures(size).items()
                },
            }
        )


def _digests(config: Config) -> Digests:
    return Digests(Path(config.work) / "digests.json")


def _expansions(values: Mapping[str, Any], config: Config) -> Iterator[str]:
    """Paths that are others than those that were typed, because of `~` or variables."""
    found = config.model_dump()
    for owner, keys in (
        (None, ("work", "results")),
        ("corpus", ("path", "train", "validation", "test")),
        ("tokenizer", ("path",)),
    ):
        typed, meant = (values, found) if owner is None else (values[owner], found[owner])
        for key in keys:
            if isinstance(typed.get(key), str | list) and typed[key] != meant[key]:
                path = key if owner is None else f"{owner}.{key}"
                yield f"{path}: {typed[key]} is {meant[key]}"


def _left_out(corpus: Corpus) -> Iterator[str]:
    if isinstance(corpus, LocalCorpus):
        for split in ("train", "validation", "test"):
            if hidden := corpus.hidden(split):
                yield f"corpus.{split}: left out, because hidden: {', '.join(hidden)}"


def laid_over(base: Path, overlays: Sequence[Path], override: Mapping[str, Any]) -> dict[str, Any]:
    """What `base` says, with `overlays` and then `override` laid over it; not validated."""
    values = yamltext.read(base)
    for path in overlays:
        if path.resolve() != base.resolve():
            values = merge(values, yamltext.read(path))
    return merge(values, override)


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Lay `over` over `base`; see the module's docstring for the rule."""
    merged = dict(base)
    for key, value in over.items():
        old = base.get(key)
        if key in CHOSEN and isinstance(value, Mapping) and isinstance(old, Mapping):
            missing = [name for name, member in value.items() if member is None and name not in old]
            if missing:
                raise BlindspotError(
                    f"{key}.{missing[0]}: it has no settings, and the base config defines only "
                    f"{', '.join(map(str, old))}; define it, or use one of these names"
                )
            merged[key] = {name: old[name] if m is None else m for name, m in value.items()}
        elif key not in REPLACED and isinstance(value, Mapping) and isinstance(old, Mapping):
            merged[key] = merge(old, value)
        else:
            merged[key] = value
    return merged
