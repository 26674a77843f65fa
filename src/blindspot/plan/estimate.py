"""How long a run's training and measurement take: from a calibration, or from recorded runs.

Training is known by the seconds of a step of the same shape and objective. Where that was not
timed, the nearest that was is scaled by FLOPs; where nothing was, a share of the device's peak rate
is assumed. A measurement is scaled from recorded ones with the
same settings, else reckoned from its FLOPs. Imports neither torch nor pandas.
"""

import math
import statistics
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from blindspot import provenance
from blindspot.config.devices import known, peak
from blindspot.config.flops import forward_per_token
from blindspot.config.spec import ModelSpec, RunSpec
from blindspot.config.study import Study
from blindspot.declared import MEASUREMENTS
from blindspot.declared.measurement import RECORD
from blindspot.plan import inventory
from blindspot.plan.calibration import Calibration, calibrations
from blindspot.plan.inventory import Record
from blindspot.plan.workload import measurement_flops, step_class, step_flops

#: Seconds that a process needs beside its work (imports, first step, writing), where nothing tells,
#: and that Snakemake needs around a job.
START, JOB = 4.0, 0.7
#: Seconds of compiling a training step, where nothing tells: a small model on one core.
COMPILE = 25.0
#: Ids of splits that are known before they are made: by label, tokenizer's kind and vocabulary. Of
#: WikiText-103 from the paper: 1.68e9 tokens are trained on in 4 epochs, each twice an epoch.
KNOWN_TOKENS: dict[tuple[str, str, int], dict[str, int]] = {
    ("wikitext-103-raw-v1", "words", 20_000): {"train": 210_000_000},
}
#: Tokens of an evaluation split, where nothing tells.
EVALUATION_TOKENS = 300_000
#: FLOP/s of the measurements, by the rough formula below, over training's: the demo's medians.
MEASUREMENT_RATE = 1.7
#: Where nothing was timed: the GPU that is reckoned with if none is asked for, and FLOP/s of a
#: core, the median of the demo's runs on an AMD EPYC (results/example).
GPU, CORE = "H200", 1.8e10


def kind_of(device: str) -> str:
    """`cuda` or `cpu`, by a device's name: torch gives GPUs their vendor's product names."""
    gpus = ("NVIDIA", "GeForce", "Quadro", "Tesla", "TITAN", "Instinct", "Radeon")
    return "cuda" if any(word in device for word in gpus) else "cpu"


@dataclass(frozen=True)
class Timed:
    """A finished training: its class, device-seconds and FLOPs a step."""

    key: str
    spec: RunSpec
    record: Record
    seconds: float
    flops: float
    device: str
    threads: int


@dataclass
class Estimator:
    """Seconds of trainings and measurements on the device that a study is for."""

    study: Study
    records: Sequence[Record]
    #: Share of the GPU's peak that is assumed where nothing was timed; None: the config's.
    share: float | None = None
    #: Where each number came from, for the person who reads it.
    bases: Counter[str] = field(default_factory=Counter)
    #: What was reckoned already, by class: a thousand runs share a few.
    _steps: dict[str, tuple[float, str]] = field(default_factory=dict)
    _measures: dict[tuple[str, str], float] = field(default_factory=dict)
    _keys: dict[int, tuple[RunSpec, str]] = field(default_factory=dict)

    def key(self, spec: RunSpec) -> str:
        """`step_class` of a run of the study."""
        if id(spec) not in self._keys:
            self._keys[id(spec)] = (spec, step_class(spec))  # held, so that the id stays its own
        return self._keys[id(spec)][1]

    @cached_property
    def kind(self) -> str:
        """`cpu` or `cuda`."""
        return provenance.kind(self.study.config.device)

    @cached_property
    def here(self) -> str | None:
        """Name of this machine's processor, where the study runs on it; a GPU's is known from a
        calibration only."""
        return provenance.processor() if self.kind == "cpu" else None

    @cached_property
    def calibration(self) -> Calibration | None:
        """The newest one of this processor, or of a GPU."""
        for found in calibrations(self.study.work):
            own = self.fits(found.device) and found.compiled == self.compiled
            if own and self.here in (None, found.device):
                return found
        return None

    def fits(self, device: str) -> bool:
        """Whether times on a device of this name count: its kind, and the GPU that is asked for."""
        asked = self.study.config.forecast.device if self.kind == "cuda" else None
        return kind_of(device) == self.kind and (asked is None or known(device) == known(asked))

    @property
    def compiled(self) -> bool:
        """Whether trainings compile their step."""
        chosen = self.study.config.execution.compile
        return self.kind == "cuda" if chosen == "auto" else chosen

    @cached_property
    def compile_seconds(self) -> float:
        """Seconds that each start of a training takes to compile its step."""
        if not self.compiled:
            return 0.0
        found = [float(t.record.provenance.get("compile_seconds") or 0) for t in self.timed]
        if took := [seconds for seconds in found if seconds > 0]:
            return statistics.median(took)
        return self.calibration.compile_seconds if self.calibration else COMPILE

    @cached_property
    def timed(self) -> list[Timed]:
        """Recorded trainings on the same kind of device and at the same precision."""
        precision, found = self.study.config.training.precision, []
        for record in self.records:
            p = record.provenance
            try:
                spec = RunSpec.model_validate(record.spec)
                ranks = int((p.get("execution") or {}).get("ranks", 1))
                seconds = ranks * float(p["seconds"]) / int(record.value["steps"])
                device, threads = str(p["device"]), int(p["threads"])
            except (KeyError, TypeError, ValueError):
                continue
            if self.fits(device) and spec.training.precision == precision:
                key, flops = step_class(spec), step_flops(spec)
                found.append(Timed(key, spec, record, seconds, flops, device, threads))
        return found

    # What is known of the data.

    @cached_property
    def splits(self) -> dict[str, int]:
        """Ids in each split's stream, where it is known: from token files, or a finished run."""
        described = [inventory.parse(self.study.tokens / "tokens.json")]
        data = self.study.data.identity()
        described += [r.value.get("data") for r in self.records if agree(r.spec.get("data"), data)]
        for one in described:
            try:
                return {str(k): int(v["length"]) for k, v in (one or {})["splits"].items()}
            except (KeyError, TypeError, ValueError):
                continue
        tokenizer = self.study.config.tokenizer
        key = (self.study.config.corpus.label, tokenizer.kind, tokenizer.vocab_size)
        return KNOWN_TOKENS.get(key, {})

    def steps(self, spec: RunSpec) -> int | None:
        """Optimizer steps of a run; None where its length in epochs needs tokens not there yet."""
        if spec.training.steps is not None:
            return spec.training.steps
        if "train" not in self.splits:
            return None
        w = spec.windows
        return spec.steps(max(0, (self.splits["train"] - 1 - w.length) // w.stride + 1))

    def flops(self, spec: RunSpec) -> float | None:
        """FLOPs of a whole training, by the formula of the throughput and cost tables."""
        steps = self.steps(spec)
        return None if steps is None else steps * step_flops(spec)

    # Times.

    @cached_property
    def start(self) -> float:
        """Seconds that a training process needs beside the training itself."""
        if self.calibration and self.kind == "cpu":
            return self.calibration.start
        found = []
        for one in self.timed:
            p = one.record.provenance
            if p.get("process_seconds") and not p.get("resumes"):
                own = float(p["seconds"]) + float(p.get("compile_seconds") or 0)
                found.append(float(p["process_seconds"]) - own)
        if found:
            return statistics.median(found)
        return self.calibration.start if self.calibration else START

    def exact(self, spec: RunSpec) -> bool:
        """Whether the time of a step need not be guessed from other shapes, or other machines."""
        found = [self._calibrated(spec)] + ([] if self.kind == "cpu" else [self._recorded(spec)])
        return any(found)

    def train(self, spec: RunSpec, left: float = 1.0, gpus: int = 1) -> float | None:
        """Device-seconds of a job that does the share `left` of a training on `gpus` devices."""
        steps = self.steps(spec)
        if steps is None:
            return None
        around = self.start + self.compile_seconds + JOB
        return self.step(spec) * steps * left + gpus * around

    def step(self, spec: RunSpec) -> float:
        """Seconds of an optimizer step, its share of validation passes included."""
        key = self.key(spec)
        if key not in self._steps:
            self._steps[key] = self._step(spec)
        seconds, basis = self._steps[key]
        self.bases[basis] += 1
        return seconds

    def _step(self, spec: RunSpec) -> tuple[float, str]:
        calibrated, recorded = self._calibrated(spec), self._recorded(spec)
        # The name of a processor does not tell how busy its machine is, that of a GPU does.
        found = calibrated or recorded if self.kind == "cpu" else recorded or calibrated
        return found or self._scaled(spec) or self._assumed(spec)

    def _calibrated(self, spec: RunSpec) -> tuple[float, str] | None:
        c = self.calibration
        if c is None or self.key(spec) not in c.steps:
            return None
        one, t = c.steps[self.key(spec)], spec.training
        validated = t.validation_windows * spec.windows.length / t.validate_every
        seconds = one["seconds"] + validated * one["validation_seconds_per_token"]
        busy = ", on a busy machine: `blindspot calibrate` when it is quiet" if c.load > 1 else ""
        threads = (
            f", {c.threads} thread{'s' if c.threads > 1 else ''}" if self.kind == "cpu" else ""
        )
        return seconds, f"calibration on {c.device}{threads}, {c.made[:10]}{busy}"

    def _recorded(self, spec: RunSpec) -> tuple[float, str] | None:
        found = [t for t in self.timed if t.key == self.key(spec)]
        return self._of(found, "recorded runs of the same shape") if found else None

    def _of(self, found: Sequence[Timed], what: str) -> tuple[float, str]:
        """The median of the device that is here, else of the one with most records."""
        device = self.here
        if device is None or all(t.device != device for t in found):
            device = Counter(t.device for t in found).most_common(1)[0][0]
        own = [t.seconds for t in found if t.device == device]
        return statistics.median(own), f"{what} on {device}"

    def _scaled(self, spec: RunSpec) -> tuple[float, str] | None:
        """From the timed shape that is nearest in FLOPs."""
        flops = step_flops(spec)
        seen = [(t.flops, t.seconds, f"recorded runs on {t.device}") for t in self.timed]
        if c := self.calibration:
            made = f"calibration on {c.device}"
            seen += [(one["flops"], one["seconds"], made) for one in c.steps.values()]
        if not seen:
            return None
        # Of equally near ones the fastest.
        nearest, seconds, source = min(seen, key=lambda one: (abs(math.log(flops / one[0])), one))
        return seconds * flops / nearest, f"{source}, of other shapes, scaled by FLOPs"

    @property
    def assumes(self) -> bool:
        """Whether nothing was timed on such a device at this precision."""
        return not self.timed and self.calibration is None

    @property
    def gpu(self) -> str:
        """The GPU that is reckoned with where nothing was timed, as the table has it."""
        return known(self.study.config.forecast.device or GPU) or GPU

    def _assumed(self, spec: RunSpec) -> tuple[float, str]:
        """From an assumed rate."""
        flops, precision = step_flops(spec), spec.training.precision
        if self.kind == "cpu":
            text = f"an assumed {CORE / 1e9:.0f} GFLOP/s of a core, the rate of the demo's runs"
            return flops / CORE, text
        share, rate = self.share or self.study.config.forecast.share, peak(self.gpu, precision)
        assert rate is not None
        text = f"an assumed {share:.0%} of the peak of an {self.gpu}"
        return flops / (share * rate), f"{text}, {rate / 1e12:.0f} TFLOP/s in {precision}"

    def measure(self, spec: RunSpec, names: Collection[str]) -> float:
        """Seconds of the job that makes these measurements of a run."""
        return sum(self._measure(spec, name) for name in names) + self.start + JOB

    def _measure(self, spec: RunSpec, name: str) -> float:
        """Seconds of a measurement itself."""
        key = (self.key(spec), name)
        if key not in self._measures:
            self._measures[key] = self._measured(spec, name)
        return self._measures[key]

    def _measured(self, spec: RunSpec, name: str) -> float:
        per_step = self.step(spec)
        work = self._recorded_measurement(spec, name, per_step)
        if work is not None:
            return work
        evaluated = sum(self.splits.get(s, EVALUATION_TOKENS) for s in ("validation", "test"))
        flops = measurement_flops(spec.model, self.study.config.measurement, evaluated)[name]
        return flops * per_step / step_flops(spec) / MEASUREMENT_RATE

    def _recorded_measurement(self, spec: RunSpec, name: str, per_step: float) -> float | None:
        """From records of the same measurement with the same settings on models of the same shape,
        by how much faster or slower their device trains today. Those of this device, where there
        are."""
        found = [
            (s, t) for s, t in self.measured[name] if _shape(t.spec.model) == _shape(spec.model)
        ]
        found = [(s, t) for s, t in found if t.device == self.here] or found
        scales = [per_step / t.seconds for _, t in found if t.key == self.key(spec)]
        if not scales:
            return None
        return statistics.median(s for s, _ in found) * statistics.median(scales)

    @cached_property
    def measured(self) -> dict[str, list[tuple[float, Timed]]]:
        """Seconds of work of recorded measurements with the study's settings, of any revision, by
        name."""
        found: dict[str, list[tuple[float, Timed]]] = {name: [] for name in MEASUREMENTS}
        settings = self.study.config.measurement
        for timed in self.timed:
            for path in timed.record.path.parent.glob(f"measure/*/{RECORD}"):
                record = inventory.parse(path) or {}
                name, seconds = record.get("measurement"), _seconds(record)
                if name not in found or seconds is None:
                    continue
                chosen = MEASUREMENTS[name].chosen(settings)
                if not chosen or agree(record.get("settings"), chosen):
                    found[name].append((seconds, timed))
        return found

    def throughput(self, size: str) -> float:
        """Seconds of the job that times a size."""
        settings = self.study.config.throughput
        spec = next(run.spec for run in self.study.runs if run.size == size)
        rate = step_flops(spec) / self.step(spec)
        tokens = settings.batch * spec.model.context * (settings.warmup + settings.repeats)
        flops = sum(
            tokens * forward_per_token(model, k)
            for model in self.study.architectures(size).values()
            for k in range(1, model.loops + 1)
        )
        return flops / rate + self.start + JOB


def agree(old: Any, new: Any) -> bool:
    """Whether what an older record knows of is as it is today. Another revision, or a key that came
    later, changes times and sizes little."""
    if isinstance(old, dict) and isinstance(new, dict):
        keys = (old.keys() & new.keys()) - {"revision"}
        return bool(keys) and all(agree(old[key], new[key]) for key in keys)
    return bool(old == new)


def _seconds(record: dict[str, Any]) -> float | None:
    """Seconds that a measurement took, where its record says."""
    seconds = (record.get("provenance") or {}).get("seconds")
    return float(seconds) if isinstance(seconds, int | float) else None


def _shape(model: ModelSpec) -> tuple[Any, ...]:
    return (model.d_model, model.layers, model.loops, model.vocab_size, model.context)
