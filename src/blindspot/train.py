"""From a run's specification and token files to weights and a trajectory.

A run is a function of its specification: initialization, data order and dropout masks depend on
the seed and the step number alone, so a run that is interrupted anywhere and resumed ends, on the
same machine and number of threads, with the same weights and trajectory to the bit.

Resumable state lies in `state` (under work/); the result folder gets its files once, at the end,
`run.json` last.
"""

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from blindspot import checkpoint, provenance, remake, trajectory
from blindspot.device import autocast, resolve
from blindspot.errors import BlindspotError, InterruptedRunError, NonFiniteError
from blindspot.files import sha256_file, write_json, write_text
from blindspot.lock import exclusive
from blindspot.model import LoopedLM, parameters
from blindspot.objective import cross_entropy, loss
from blindspot.spec import RunSpec
from blindspot.tokens import Tokens
from blindspot.windows import Batches, count

#: What a run that failed for good leaves in its result folder, so that tables can say so.
FAILED = "failed.json"
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2)
#: Seconds between progress lines on the terminal; the run's log has them all.
SHOW_EVERY = 5.0


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
    #: Seconds between checkpoints.
    checkpoint_every: float = 300.0


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

    def meta(self, spec: RunSpec) -> dict[str, Any]:
        return {"run": spec.hash, "spec": spec.identity()} | asdict(self)


def total_steps(spec: RunSpec, windows: int) -> int:
    """Optimizer steps: as given, or as many whole batches as `epochs` passes hold."""
    if spec.training.steps is not None:
        return spec.training.steps
    assert spec.training.epochs is not None
    return max(1, int(spec.training.epochs * windows) // spec.batch)


def train(job: Job) -> None:
    """Train a run to its end, or go on with it; then write its results."""
    with exclusive(job.state):
        if remake.honour(job.state, job.out):
            _say(job, "starts from nothing, as reuse: false asks")
        weights = job.state / checkpoint.WEIGHTS
        saved = checkpoint.read(weights) if weights.exists() else None
        if saved is not None and saved.meta["run"] == job.spec.hash:
            _say(job, f"already trained ({weights}); writing its results again")
            meta = saved.meta
        else:
            trainer = Trainer(job)
            try:
                meta = trainer.run()
            except NonFiniteError as error:
                record = {"name": job.name, "hash": job.spec.hash, "step": trainer.progress.step}
                write_json(job.out / FAILED, record | {"error": str(error)})
                raise
        publish(job, meta)
        (job.out / FAILED).unlink(missing_ok=True)


class Trainer:
    """One run on one device."""

    def __init__(self, job: Job) -> None:
        self.job, self.spec = job, job.spec
        torch.set_num_threads(job.threads)
        self.device = resolve(job.device)
        self.data = Tokens.open(job.tokens, data=self.spec.data)
        stream = self.data.split("train")
        self.batches = Batches(stream, self.spec.windows, self.spec.batch, self.spec.seed)
        self.steps = total_steps(self.spec, count(len(stream), self.spec.windows))
        self.validation = self._validation_windows()
        torch.manual_seed(self.spec.seed)
        self.model = LoopedLM(self.spec.model).to(self.device)
        t = self.spec.training
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(),
            lr=t.learning_rate,
            betas=t.betas,
            weight_decay=t.weight_decay,
            fused=True,
        )
        self.progress = Progress()
        self.stop = 0
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
        started = last_save = time.monotonic()
        before = self.progress.seconds
        if self.progress.step == 0:
            self._validate(0)
        with _signals(self), _tensorboard(self) as board:
            while self.progress.step < self.steps:
                self._step(self.progress.step)
                self.progress.step += 1
                step, now = self.progress.step, time.monotonic()
                self.progress.seconds = before + now - started
                if self._logs(step):
                    self._log(step, board)
                if step % self.spec.training.validate_every == 0 or step == self.steps:
                    self._validate(step)
                if self.stop and step < self.steps:
                    self._save()
                    raise InterruptedRunError(
                        f"{self.job.name}: stopped by {signal.Signals(self.stop).name} at step "
                        f"{step} of {self.steps}; its state is saved, the same command goes on"
                    )
                if now - last_save > self.job.checkpoint_every and step < self.steps:
                    self._save()
                    last_save = now
        meta = self.progress.meta(self.spec)
        tensors = dict(self.model.named_parameters())
        checkpoint.write(self.job.state / checkpoint.WEIGHTS, tensors, meta)
        checkpoint.prune(self.job.state, keep=0)
        return meta

    def _resume(self) -> None:
        """Take up the newest whole checkpoint, naming each damaged one that is passed over."""
        for path in checkpoint.checkpoints(self.job.state):
            try:
                saved = checkpoint.read(path)
            except BlindspotError as error:
                _say(self.job, f"{error}; trying the one before it")
                continue
            if saved.meta["run"] != self.spec.hash:
                raise BlindspotError(
                    f"{path}: belongs to run {saved.meta['run']}, not to {self.spec.hash}; "
                    f"move it away, or give this run another state folder"
                )
            checkpoint.restore(self.model, self.optimizer, saved, path)
            kept = {f.name: saved.meta[f.name] for f in fields(Progress)}
            self.progress = Progress(**kept)
            self.progress.resumes += 1
            _say(self.job, f"resumes at step {self.progress.step} of {self.steps}")
            return

    def _step(self, step: int) -> None:
        # Dropout masks are a function of (seed, step): nothing of the generator needs saving.
        torch.manual_seed(
            np.random.SeedSequence([self.spec.seed, step]).generate_state(1)[0].item()
        )
        batch = torch.from_numpy(self.batches[step]).to(self.device, non_blocking=True)
        inputs, targets = batch[:, :-1], batch[:, 1:]
        with autocast(self.spec.training.precision, self.device):
            states = self.model(inputs)
            result = loss(self.model, states, targets, self.spec.objective)
        result.total.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.spec.training.clip)
        if self._logs(step + 1):
            with autocast(self.spec.training.precision, self.device):
                self.observed = trajectory.observe(self.model, states, targets, result.ce)
            self.grad_norm = norm
        # One look a step costs nothing on the CPU; on a GPU it would wait for the device, so there
        # it happens when the log is read back, before anything is saved.
        if self.device.type == "cpu" or self._logs(step + 1):
            self._require_finite(step + 1, result.total, norm)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def _require_finite(self, step: int, total: Tensor, norm: Tensor) -> None:
        if bool(torch.isfinite(total) & torch.isfinite(norm)):
            return
        kept = checkpoint.checkpoints(self.job.state)
        raise NonFiniteError(
            f"{self.job.name}: at step {step} the loss is {total.item():.6g} and the gradient norm "
            f"{norm.item():.6g}; the step was not applied and the run has failed. Last checkpoint: "
            f"{kept[0] if kept else 'none'}. Lower training.learning_rate or training.clip"
        )

    def _logs(self, step: int) -> bool:
        return step % self.spec.training.log_every == 0 or step in (1, self.steps)

    def _log(self, step: int, board: Any) -> None:
        p, spec = self.progress, self.spec
        table, norm = self.observed.cpu(), float(self.grad_norm)
        per_step = spec.batch * spec.windows.length
        p.rows += trajectory.rows(step, step * per_step, "train", table, norm)
        old_step, old_seconds = (p.timing[-1][0], p.timing[-1][1]) if p.timing else (0, 0.0)
        speed = (step - old_step) * per_step / max(p.seconds - old_seconds, 1e-9)
        p.timing.append([step, round(p.seconds, 3), round(speed, 1)])
        if board is not None:
            for k, values in enumerate(table.tolist()):
                if k:
                    board.add_scalar(f"ce/{k}", values[0], step)
                board.add_scalar(f"norm/{k}", values[1], step)
            board.add_scalar("grad_norm", norm, step)
        left = (self.steps - step) * p.seconds / step
        last = table[-1].tolist()
        show = p.seconds - self.shown >= SHOW_EVERY or step in (1, self.steps)
        self.shown = p.seconds if show else self.shown
        _say(
            self.job,
            f"step {step}/{self.steps}  CE {last[0]:.3f}  norm {last[1]:.1f}  "
            f"{speed:,.0f} tokens/s  {int(left) // 60}:{int(left) % 60:02d} left",
            show,
        )

    @torch.no_grad()
    def _validate(self, step: int) -> None:
        """CE and norms at every loop over fixed validation windows, dropout off."""
        self.model.eval()
        depths = range(self.spec.model.loops + 1)
        ce = torch.zeros(len(depths), device=self.device)
        ce[0] = torch.nan
        norms: list[list[Tensor]] = [[] for _ in depths]
        for chunk in self.validation.split(self.spec.batch):
            chunk = chunk.to(self.device)
            with autocast(self.spec.training.precision, self.device):
                states = self.model(chunk[:, :-1])
                for k in depths[1:]:
                    share = len(chunk) / len(self.validation)
                    ce[k] += share * cross_entropy(self.model, states[k], k, chunk[:, 1:])
            for k in depths:
                norms[k].append(trajectory.token_norms(states[k]))
        marks = torch.stack([trajectory.summary(torch.cat(n)) for n in norms])
        table = torch.cat([ce[:, None], marks], dim=1).cpu()
        tokens = step * self.spec.batch * self.spec.windows.length
        self.progress.rows += trajectory.rows(step, tokens, "validation", table, None)
        self.model.train()

    def _save(self) -> None:
        if not all(bool(torch.isfinite(p).all()) for p in self.model.parameters()):
            raise NonFiniteError(
                f"{self.job.name}: weights are not finite at step {self.progress.step}; nothing "
                f"was saved over the last good checkpoint. Lower training.learning_rate"
            )
        path = checkpoint.path_of(self.job.state, self.progress.step)
        tensors = checkpoint.training_state(self.model, self.optimizer)
        checkpoint.write(path, tensors, self.progress.meta(self.spec))
        checkpoint.prune(self.job.state)


def publish(job: Job, meta: dict[str, Any]) -> None:
    """Write the result folder from what is saved beside the weights; `run.json` is last."""
    spec = job.spec
    data = Tokens.open(job.tokens, verify=False)
    device = resolve(job.device)
    write_text(job.out / "trajectory.csv", trajectory.to_csv(trajectory.COLUMNS, meta["rows"]))
    write_text(job.out / "timing.csv", trajectory.to_csv(trajectory.TIMING_COLUMNS, meta["timing"]))
    tokens = meta["step"] * spec.batch * spec.windows.length
    csvs = [job.out / "trajectory.csv", job.out / "timing.csv"]
    write_json(
        job.out / "run.json",
        {
            "name": job.name,
            "hash": spec.hash,
            "revision": spec.revision,
            "spec": spec.identity(),
            "steps": meta["step"],
            "tokens_seen": tokens,
            "parameters": parameters(spec.model),
            "data": data.meta,
            "files": {path.name: sha256_file(path) for path in csvs},
            "provenance": provenance.collect()
            | {
                "device": provenance.device_name(device),
                "threads": job.threads,
                "precision": spec.training.precision,
                "started": meta["started"],
                "finished": provenance.now(),
                "resumes": meta["resumes"],
                "seconds": meta["seconds"],
                "tokens_per_s": round(tokens / max(meta["seconds"], 1e-9), 1),
            },
        },
    )


@contextmanager
def _signals(trainer: Trainer) -> Iterator[None]:
    """Ctrl-C, SIGTERM and SIGUSR2 (Slurm, ahead of a limit) end the run after the step at hand."""

    def note(number: int, _frame: FrameType | None) -> None:
        trainer.stop = number

    old = {s: signal.signal(s, note) for s in STOPS}
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


@contextmanager
def _tensorboard(trainer: Trainer) -> Iterator[Any]:
    """A TensorBoard writer in the state folder, or None where TensorBoard is not installed."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        yield None
        return
    # After a resume, events of steps that are trained again are dropped.
    folder = trainer.job.state / "tensorboard"
    writer = SummaryWriter(str(folder), purge_step=trainer.progress.step + 1)
    try:
        yield writer
    finally:
        writer.close()


def _say(job: Job, text: str, show: bool = True) -> None:
    """Tell the person at the terminal, and the run's own log, which outlives every attempt."""
    if show:
        print(f"{job.name}: {text}", file=sys.stderr, flush=True)
    with open(job.state / "train.log", "a", encoding="utf-8") as log:
        log.write(f"{provenance.now()} {text}\n")
