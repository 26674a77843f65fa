"""From a run's specification and token files to weights and a trajectory.

A run is a function of its specification: initialization, data order and dropout masks depend on
the seed and the step number alone, so a run that is interrupted anywhere and resumed ends, on the
same machine and number of threads, with the same weights and trajectory to the bit.

Resumable state lies in `state` (under work/); the result folder gets its files once, at the end,
`run.json` last.
"""

import shutil
import time
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from blindspot import provenance, tensorfile
from blindspot.config.execution import Execution
from blindspot.config.flops import parameters
from blindspot.config.runfiles import WEIGHTS
from blindspot.config.spec import RunSpec
from blindspot.data.tokens import Tokens
from blindspot.data.windows import Batches, count
from blindspot.errors import BlindspotError, InterruptedRunError, NonFiniteError
from blindspot.files import write_json
from blindspot.lm.device import autocast, resolve
from blindspot.lm.objective import cross_entropy
from blindspot.training import checkpoint, outcome, parallel, remake, stopping, trajectory
from blindspot.training.engine import Engine
from blindspot.training.lock import exclusive
from blindspot.training.parallel import World
from blindspot.training.runlog import SHOW_EVERY, Board, say, tensorboard

#: What a run that failed for good leaves in its result folder, so that tables can say so.
FAILED = "failed.json"
#: Tokens of one slice of a validation pass, so that its memory does not grow with the batch.
SLICE_TOKENS = {"cpu": 4096, "cuda": 16384}


@dataclass
class Job:
    """What to train, from what, and where to."""

    name: str
    spec: RunSpec
    tokens: Path
    #: Result folder: run.json, trajectory.csv, timing.csv.
    out: Path
    #: State folder: checkpoints, weights, TensorBoard events, lock.
    state: Path
    device: str = "auto"
    threads: int = 1
    execution: Execution = field(default_factory=Execution)


@dataclass
class Progress:
    """All that changes while a run trains, beside the tensors."""

    step: int = 0
    seconds: float = 0.0
    #: When training began, and how often it was taken up again.
    started: str = field(default_factory=provenance.now)
    resumes: int = 0
    rows: list[list[Any]] = field(default_factory=list)
    timing: list[list[Any]] = field(default_factory=list)
    #: Steps (from 0) that were left out because they were not finite.
    skipped: list[int] = field(default_factory=list)
    #: Bytes that the last attempt needed at most.
    peak_memory: int | None = None

    def meta(self, spec: RunSpec) -> dict[str, Any]:
        return {"run": spec.hash, "spec": spec.identity()} | asdict(self)


def total_steps(spec: RunSpec, windows: int) -> int:
    """Optimizer steps: as given, or as many whole batches as `epochs` passes hold."""
    if spec.training.steps is not None:
        return spec.training.steps
    assert spec.training.epochs is not None
    return max(1, int(spec.training.epochs * windows) // spec.batch)


def train(job: Job) -> None:
    """Train a run to its end, or go on with it; then write its results.

    SIGTERM, SIGUSR2 and Ctrl-C save its state and end it with `InterruptedRunError`.
    """
    torch.set_num_threads(job.threads)
    world = parallel.join(job.device)
    with stopping.noted(), exclusive(job.state) if world.is_main else nullcontext():
        meta = world.broadcast([], _trained(job) if world.is_main else None)
        if meta is None:
            trainer = Trainer(job, world)
            try:
                meta = trainer.run()
            except NonFiniteError as error:
                record = {"name": job.name, "hash": job.spec.hash, "step": trainer.progress.step}
                if world.is_main:
                    write_json(job.out / FAILED, record | {"error": str(error)})
                raise
        if world.is_main:
            # Here, so that a kill just after the weights were written leaves nothing for good.
            checkpoint.prune(job.state, keep=0)
            execution = job.execution.identity() | {"ranks": world.size}
            device = resolve(job.device)
            outcome.publish(job.name, job.spec, job.tokens, job.out, meta, execution, device)
            (job.out / FAILED).unlink(missing_ok=True)


def _trained(job: Job) -> dict[str, Any] | None:
    """What lies beside the weights of a run that was trained to its end."""
    if remake.clear_if_asked(job.state, job.out):
        say(job.name, job.state, "starts from nothing, as reuse: false asks")
    weights = job.state / WEIGHTS
    if not weights.exists():
        return None
    try:
        meta = tensorfile.read(weights).meta
    except BlindspotError as error:
        raise BlindspotError(f"{error}; delete it to train this run again") from None
    _require_own(job, weights, meta)
    say(job.name, job.state, f"already trained ({weights}); writing its results again")
    return meta


def _require_own(job: Job, path: Path, meta: dict[str, Any]) -> None:
    if meta["run"] != job.spec.hash:
        raise BlindspotError(
            f"{path}: belongs to run {meta['run']}, not to {job.spec.hash}; "
            f"move it away, or give this run another state folder"
        )


def require_room(state: Path, spec: RunSpec) -> None:
    """Refuse to start where the run's checkpoints will not fit: parameters and two moments, in
    float32, as many times as checkpoints are kept, and once more while one is written."""
    there = sum(path.stat().st_size for path in checkpoint.checkpoints(state))
    needed = (checkpoint.KEEP + 1) * 12 * parameters(spec.model) - there
    free = shutil.disk_usage(state).free
    if free < needed:
        raise BlindspotError(
            f"{state}: {free / 2**20:,.0f} MiB are free, this run's checkpoints need "
            f"{needed / 2**20:,.0f}; make room, or set `work` in the config to a larger disk"
        )


class Trainer:
    """One run, from where it was to its end."""

    def __init__(self, job: Job, world: World | None = None) -> None:
        self.job, self.spec, self.world = job, job.spec, world or World()
        self.device = resolve(job.device)
        self.data = Tokens.open(job.tokens, data=self.spec.data)
        stream = self.data.split("train")
        self.batches = Batches(
            stream,
            self.spec.windows,
            self.spec.batch,
            self.spec.seed,
            self.world.rank,
            self.world.size,
        )
        self.steps = total_steps(self.spec, count(len(stream), self.spec.windows))
        self.validation = self._validation_windows()
        if self.world.is_main:
            require_room(job.state, self.spec)
        self.engine = Engine(self.spec, self.device, job.execution, self.world)
        self.model = self.engine.model
        self.progress = Progress()
        self.writer = checkpoint.Writer(job.state)
        #: The step of the newest checkpoint.
        self.saved = 0
        self.shown = 0.0

    def _validation_windows(self) -> Tensor:
        stream, length = self.data.split("validation"), self.spec.windows.length
        n = min(self.spec.training.validation_windows, (len(stream) - 1) // length)
        if n < 1:
            raise BlindspotError(
                f"{self.job.tokens}: validation has {len(stream)} tokens, less than one window of "
                f"{length}; give the corpus more validation text or shorten windows.length"
            )
        windows = np.stack([stream[i * length : (i + 1) * length + 1] for i in range(n)])
        return torch.from_numpy(windows.astype(np.int64))

    def run(self) -> dict[str, Any]:
        """Train to the end and save the weights; returns what is saved beside them."""
        self._resume()
        self.model.train()
        # A monotonic clock: the wall's may be set back, or leap.
        started = last_save = time.monotonic()
        before, p, execution = self.progress.seconds, self.progress, self.job.execution
        if p.step == 0:
            self._validate(0)
        with (
            tensorboard(self.job.state / "tensorboard", p.step)
            if self.world.is_main
            else (nullcontext(Board())) as board
        ):
            ids = self._ids(p.step)
            while p.step < self.steps:
                if number := self.world.max_over_ranks(stopping.requested()):
                    self._stop(number)
                look = self._logs(p.step + 1)
                self.engine.step(ids, p.step, look)
                p.step += 1
                # Fetched while the device is at work.
                ids = self._ids(p.step)
                # One look a step costs nothing on the CPU; on a GPU it would wait for the device.
                if look or self.device.type == "cpu":
                    self._harvest()
                now = time.monotonic()
                p.seconds = before + now - started
                if look:
                    self._log(board)
                if p.step % self.spec.training.validate_every == 0 or p.step == self.steps:
                    self._validate(p.step)
                every = execution.checkpoint_steps
                due = now - last_save > 60 * execution.checkpoint_minutes
                if (due or (every and p.step % every == 0)) and p.step < self.steps:
                    self._save()
                    last_save = time.monotonic()
        self.writer.wait()
        p.peak_memory = outcome.peak_memory(self.device)
        meta = p.meta(self.spec)
        if self.world.is_main:
            tensors = dict(self.model.named_parameters())
            tensorfile.write(self.job.state / WEIGHTS, tensors, meta)
        return meta

    def _ids(self, step: int) -> Tensor:
        """This rank's rows of a batch, on the device: int64 (B / world, T + 1)."""
        ids = torch.from_numpy(self.batches[min(step, self.steps - 1)])
        if self.device.type == "cpu":
            return ids
        return ids.pin_memory().to(self.device, non_blocking=True)

    def _stop(self, number: int) -> None:
        stopping.request(number)  # the other ranks' too
        step = self.progress.step
        if step != self.saved:
            self._save()
        self.writer.wait()
        raise InterruptedRunError(
            f"{self.job.name}: stopped by {stopping.name(number)} at step {step} of {self.steps}; "
            f"its state is saved, the same command goes on"
        )

    def _resume(self) -> None:
        """Take up the newest whole checkpoint, naming each damaged one that is passed over."""
        meta = self._newest() if self.world.is_main else None
        tensors = checkpoint.training_state(self.model, self.engine.optimizer)
        meta = self.world.broadcast(list(tensors.values()), meta)
        if meta is None:
            return
        self.progress = Progress(**{f.name: meta[f.name] for f in fields(Progress)})
        self.progress.resumes += 1
        self.saved = self.progress.step
        self.engine.resume(self.progress.step, self.progress.skipped)
        if self.world.is_main:
            self._say(f"resumes at step {self.progress.step} of {self.steps}")

    def _newest(self) -> dict[str, Any] | None:
        for path in checkpoint.checkpoints(self.job.state):
            try:
                saved = tensorfile.read(path)
            except BlindspotError as error:
                self._say(f"{error}; trying the one before it")
                continue
            _require_own(self.job, path, saved.meta)
            checkpoint.restore(self.model, self.engine.optimizer, saved, path)
            return saved.meta
        return None

    def _harvest(self) -> None:
        """Note which steps were left out; end the run where it has failed."""
        skipped, failed = self.engine.harvest()
        self.progress.skipped += skipped
        for step in skipped:
            self._say(f"step {step + 1} is not finite and was left out")
        if failed is None:
            return
        self.progress.step = failed
        self.writer.wait()
        kept = checkpoint.checkpoints(self.job.state)
        before = ""
        if self.spec.training.skip:
            before = f", after {self.spec.training.skip} in a row that were left out"
        raise NonFiniteError(
            f"{self.job.name}: at step {failed + 1}{before}, the first number that is not finite "
            f"is in {self.engine.explain(self._ids(failed), failed)}; the step was not applied and "
            f"the run has failed. Last good checkpoint: {kept[0] if kept else 'none'}. Lower "
            f"training.learning_rate or training.clip, or see training.nonfinite"
        )

    def _logs(self, step: int) -> bool:
        return step % self.spec.training.log_every == 0 or step in (1, self.steps)

    def _log(self, board: Board) -> None:
        p, spec, step = self.progress, self.spec, self.progress.step
        table, norm = self.engine.seen()
        per_step = spec.batch * spec.windows.length
        p.rows += trajectory.rows(step, step * per_step, "train", table, norm)
        old_step, old_seconds = (p.timing[-1][0], p.timing[-1][1]) if p.timing else (0, 0.0)
        speed = (step - old_step) * per_step / max(p.seconds - old_seconds, 1e-9)
        p.timing.append([step, round(p.seconds, 3), round(speed, 1)])
        if not self.world.is_main:
            return
        board.add(step, table, norm)
        left = int((self.steps - step) * p.seconds / step)
        ce, norm_k = table[-1].tolist()[:2]
        show = p.seconds - self.shown >= SHOW_EVERY or step in (1, self.steps)
        self.shown = p.seconds if show else self.shown
        self._say(
            f"step {step}/{self.steps}  CE {ce:.3f}  norm {norm_k:.1f}  "
            f"{speed:,.0f} tokens/s  {left // 60}:{left % 60:02d} left",
            show,
        )

    @torch.no_grad()
    def _validate(self, step: int) -> None:
        """CE and norms at every loop over fixed validation windows, dropout off."""
        if not self.world.is_main:
            return
        self._harvest()
        self.model.eval()
        depths = range(self.spec.model.loops + 1)
        ce = torch.zeros(len(depths), device=self.device)
        ce[0] = torch.nan
        norms = []
        tokens = SLICE_TOKENS.get(self.device.type, SLICE_TOKENS["cuda"])
        for chunk in self.validation.split(max(1, tokens // self.spec.windows.length)):
            chunk = chunk.to(self.device)
            with autocast(self.spec.training.precision, self.device):
                states = self.model(chunk[:, :-1])
                for k in depths[1:]:
                    share = len(chunk) / len(self.validation)
                    ce[k] += share * cross_entropy(self.model, states[k], k, chunk[:, 1:])
            norms.append(torch.stack([trajectory.token_norms(state) for state in states]))
        marks = trajectory.summary(torch.cat(norms, dim=1))
        table = torch.cat([ce[:, None], marks], dim=1).cpu()
        seen = step * self.spec.batch * self.spec.windows.length
        self.progress.rows += trajectory.rows(step, seen, "validation", table, None)
        self.model.train()

    def _save(self) -> None:
        if not self.world.is_main:
            return
        self._harvest()
        if not all(bool(torch.isfinite(p).all()) for p in self.model.parameters()):
            raise NonFiniteError(
                f"{self.job.name}: weights are not finite at step {self.progress.step}; nothing "
                f"was saved over the last good checkpoint. Lower training.learning_rate"
            )
        tensors = checkpoint.training_state(self.model, self.engine.optimizer)
        self.writer.start(self.progress.step, tensors, self.progress.meta(self.spec))
        self.saved = self.progress.step

    def _say(self, text: str, show: bool = True) -> None:
        say(self.job.name, self.job.state, text, show)
