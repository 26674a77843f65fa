"""Section `speed`: training steps against the plain reference, and what the machine can do at all.

`matmul.csv`: bf16 products of random matrices: a large square one, whose rate is the machine's, and
those that a size's layers are made of, which are the ceiling for that width.

`speed.csv`, one row a size x cell x path, at the paper's batch, dropout 0.1 (the reference has
none), random ids; paths take turns, a round each:

    path                reference-float32, reference-bf16    plain, eager (tests/reference_model.py,
                                                             all heads at once)
                        eager, recompute, compiled           the engine; recompute is eager, too
    step_s, low, high   median, least and most seconds of a step over `rounds`
    tokens_per_s        of the median step
    tflops              causal FLOPs of the step (config/flops.py) a second; work done twice by
                        recomputation does not count
    mfu_sheet           share of the maker's dense bf16 rate; empty for an unknown GPU
    mfu_measured        share of the rate of the square product
    memory_mib          most memory of a step, parameters and moments included
    compile_s           seconds to the first result, where compiled
    speedup_float32, speedup_bf16    median over rounds of the reference's time over this path's

`profile.csv`: kernels of a compiled step by their time on the device; `(all)` is their sum.
"""

import math
from collections.abc import Callable, Iterable
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.autograd import DeviceType

from blindspot.config.devices import peak
from blindspot.config.flops import training_per_token
from blindspot.config.spec import RunSpec
from blindspot.provenance import device_name
from gpu.bench import Bench, Reference, Sheet, engine

MATMUL = ("size", "name", "m", "n", "k", "seconds", "tflops")
COLUMNS = (
    "size",
    "cell",
    "path",
    "batch",
    "context",
    "rounds",
    "step_s",
    "low",
    "high",
    "tokens_per_s",
    "tflops",
    "mfu_sheet",
    "mfu_measured",
    "memory_mib",
    "compile_s",
    "speedup_float32",
    "speedup_bf16",
)
PROFILE = ("size", "cell", "kernel", "calls_per_step", "ms_per_step", "share")
#: The issue's first questions first.
CONFIGURATIONS = (
    ("44m", "perloop-rms"),
    ("129m", "perloop-rms"),
    ("44m", "terminal-rms"),
    ("129m", "terminal-rms"),
)
#: A step of a batch of ids.
Step = Callable[[Tensor], None]


def run(bench: Bench) -> None:
    rate: float | None = None
    with bench.case("matmul"):
        rate = matmul(bench)
    sheet, profile = bench.sheet("speed", COLUMNS), bench.sheet("profile", PROFILE)
    timings = [
        Timing(bench, sheet, bench.plan.run(size, cell), size, cell, rate)
        for size, cell in CONFIGURATIONS
    ]
    for timing in timings:
        with bench.case(timing.name):
            timing.plain()
        timing.release()
    # Seconds of compilation a block that is unrolled, once seen. By blocks 129M would take half as
    # long again as 44M; it has fewer logits, takes a fifth more, and so leaves room for timing it.
    seen: float | None = None
    for timing in timings:
        blocks = timing.spec.model.layers * timing.spec.model.loops
        if bench.fits(f"{timing.name}, compiled", blocks * (seen or 0) + 5):
            with bench.case(f"{timing.name}, compiled"):
                seen = timing.compiled(profile) / blocks
        timing.release()


def matmul(bench: Bench) -> float:
    """Write `matmul.csv`; the rate of the square product, FLOP/s."""
    plan = bench.plan
    sheet = bench.sheet("matmul", MATMUL)
    shapes = [("", "square", plan.square, plan.square, plan.square)]
    for size, s in plan.sizes.items():
        tokens, d = s["batch"] * plan.context, s["d_model"]
        shapes += [
            (size, "qkv", tokens, 3 * d, d),
            (size, "out", tokens, d, d),
            (size, "gate", tokens, 4 * d, d),
            (size, "down", tokens, d, 4 * d),
            (size, "head", tokens, plan.vocab, d),
        ]
    rates = []
    for size, name, m, n, k in shapes:
        a = torch.randn(m, k, device=bench.device, dtype=torch.bfloat16)
        b = torch.randn(k, n, device=bench.device, dtype=torch.bfloat16)
        out = torch.empty(m, n, device=bench.device, dtype=torch.bfloat16)
        work = partial(torch.mm, a, b, out=out)
        bench.seconds(work, 3)
        times = max(3, math.ceil(plan.at_least / 4 / bench.seconds(work, 3)))
        seconds = median(bench.seconds(work, times) for _ in range(3))
        rates.append(2 * m * n * k / seconds)
        sheet.add([size, name, m, n, k, seconds, rates[-1] / 1e12])
    return rates[0]


class Timing:
    """A configuration's paths, timed in turn."""

    def __init__(
        self, bench: Bench, sheet: Sheet, spec: RunSpec, size: str, cell: str, rate: float | None
    ) -> None:
        self.bench, self.sheet, self.spec = bench, sheet, spec
        self.size, self.cell, self.rate = size, cell, rate
        self.name = f"{size}, {cell}"
        self.ids = bench.ids(spec)
        self.steps: dict[str, Step] = {}
        self.times: dict[str, list[float]] = {}
        self.memory: dict[str, float | None] = {}
        self.compile_s: float | None = None

    def plain(self) -> None:
        """Everything that needs no compiler; fewer rounds, since most are timed again."""
        self._prepare()
        self._rounds(max(1, self.bench.plan.rounds // 2))

    def compiled(self, profile: Sheet) -> float:
        """Compile, time all paths in turn again; returns the seconds that compiling took."""
        self._prepare()
        self.compile_s = self._add("compiled", partial(self._engine, compile=True))
        if self.compile_s is None:
            raise RuntimeError("the compiled step does not run")
        self._rounds(self.bench.plan.rounds)
        if self.cell == "perloop-rms":
            self._profile(profile)
        return self.compile_s

    def release(self) -> None:
        """Give the memory of all paths back."""
        self.steps.clear()
        self.bench.forget()
        self.bench.free()

    def _prepare(self) -> None:
        self.times = {}
        for precision in ("float32", "bf16"):
            self._add(
                f"reference-{precision}",
                lambda p=precision: Reference(self.spec, self.bench.device, p).step,  # type: ignore[misc]
            )
        self._add("eager", self._engine)
        self._add("recompute", partial(self._engine, recompute=True))

    def _engine(self, recompute: bool = False, compile: bool = False) -> Step:
        made = engine(self.spec, self.bench.device, recompute=recompute, compile=compile)
        return partial(made.step, step=0)

    def _add(self, name: str, build: Callable[[], Step]) -> float | None:
        """Build a path and run it twice; returns the seconds of the first time. One that does not
        run is noted and left out."""
        cuda = self.bench.device.type == "cuda"
        first: float | None = None
        with self.bench.case(f"{self.name}, {name}: first steps"):
            before = torch.cuda.memory_allocated() if cuda else 0
            step = build()
            first = self.bench.seconds(lambda: step(self.ids))
            if cuda:
                torch.cuda.reset_peak_memory_stats()
            self.bench.seconds(lambda: step(self.ids))
            most = torch.cuda.max_memory_allocated() - before if cuda else None
            self.steps[name], self.times[name] = step, []
            self.memory[name] = None if most is None else most / 2**20
        return first

    def _rounds(self, rounds: int) -> None:
        times = {}
        for name, step in self.steps.items():
            once = self.bench.seconds(lambda s=step: s(self.ids))  # type: ignore[misc]
            times[name] = max(1, math.ceil(self.bench.plan.at_least / once))
        for _ in range(rounds):
            for name, step in self.steps.items():
                work = partial(step, self.ids)
                self.times[name].append(self.bench.seconds(work, times[name]))
            self._write()

    def _write(self) -> None:
        spec, tokens = self.spec, self.spec.batch * self.spec.windows.length
        flops = training_per_token(spec.model, spec.objective) * tokens
        sheet_rate = peak(device_name(self.bench.device))
        rows = []
        for name, times in self.times.items():
            rate = flops / median(times)
            rows.append(
                [self.size, self.cell, name, spec.batch, spec.windows.length, len(times)]
                + [median(times), min(times), max(times), tokens / median(times), rate / 1e12]
                + [rate / sheet_rate if sheet_rate else None]
                + [rate / self.rate if self.rate else None]
                + [self.memory[name], self.compile_s if name == "compiled" else None]
                + [self._ratio(f"reference-{p}", name) for p in ("float32", "bf16")]
            )
        self.sheet.add(*rows, key=3)

    def _ratio(self, reference: str, name: str) -> float | None:
        if reference not in self.times:
            return None
        pairs = zip(self.times[reference], self.times[name], strict=False)
        return median(slow / fast for slow, fast in pairs)

    def _profile(self, sheet: Sheet, steps: int = 3, most: int = 40) -> None:
        from torch.profiler import ProfilerActivity, profile

        kinds = [ProfilerActivity.CPU]
        kinds += [ProfilerActivity.CUDA] if self.bench.device.type == "cuda" else []
        with profile(activities=kinds) as seen:
            for _ in range(steps):
                self.steps["compiled"](self.ids)
            self.bench.wait()
        found = spent(seen.key_averages(), self.bench.device.type)
        whole = sum(s for s, _, _ in found)
        found = [(whole, "(all)", sum(calls for _, _, calls in found)), *found[:most]]
        for time, key, calls in found:
            row = [self.size, self.cell, key[:120], calls / steps, time / 1e3 / steps]
            sheet.add([*row, time / whole])


def spent(events: Iterable[Any], device: str) -> list[tuple[float, str, int]]:
    """Microseconds, name and calls of what ran on the device, the longest first.

    On a GPU kernels alone: an operation on the host has the time of its kernels, too, and so has a
    range that somebody named; with them all would count twice.
    """
    found = []
    for event in events:
        if device == "cpu":
            time = event.self_cpu_time_total
        elif event.device_type == DeviceType.CUDA and not event.is_user_annotation:
            time = event.self_device_time_total
        else:
            continue
        if time > 0:
            found.append((time, event.key, event.count))
    return sorted(found, reverse=True)
