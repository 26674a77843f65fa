"""From config files to a `Study`, and from a study to its runs."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from pydantic import ValidationError

from blindspot.config.cells import Cell
from blindspot.config.dataspec import Corpus, DataSpec, FileTokenizer, LocalCorpus
from blindspot.config.digests import Digests, identified, pinned
from blindspot.config.explain import explain
from blindspot.config.overlays import laid_over
from blindspot.config.revisions import THROUGHPUT_REVISION
from blindspot.config.schema import Config, Size
from blindspot.config.spec import ModelSpec, RunSpec, Shape
from blindspot.config.studyclaims import judged
from blindspot.config.sweeps import expanded
from blindspot.errors import BlindspotError
from blindspot.settings import digest


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
