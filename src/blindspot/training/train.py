"""From a run's specification and token files to weights and a trajectory.

A run is a function of its specification: initialization, data order and dropout masks depend on
the seed and the step number alone, so a run that is interrupted anywhere and resumed ends, on the
same machine and number of threads, with the same weights and trajectory to the bit.

Resumable state is kept in `state` (under work/). The files of the result folder are written once,
at the end, `run.json` last.
"""

import time
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor

from blindspot import tensorfile
from blindspot.config.execution import Execution
from blindspot.config.runfiles import WEIGHTS
from blindspot.data.tokens import Tokens
from blindspot.data.windows import Batches, count
from blindspot.errors import BlindspotError, InterruptedRunError, NonFiniteError
from blindspot.files import write_json
from blindspot.lm.device import autocast, resolve
from blindspot.lm.objective import cross_entropy
from blindspot.training import checkpoint, outcome, parallel, state, stopping, trajectory
from blindspot.training.engine import Engine
from blindspot.training.job import Job, Progress
from blindspot.training.lock import exclusive
from blindspot.training.parallel import World
from blindspot.training.runlog import SHOW_EVERY, Board, note, say, tensorboard
from blindspot.training.state import Found
from blindspot.training.tracking import Tracker

#: What a run that failed for good leaves in its result folder, so that tables can say so.
FAILED = "failed.json"
#: Tokens of one slice of a validation pass, so that its memory does not grow with the batch.
SLICE_TOKENS = {"cpu": 4096, "cuda": 16384}


def train(job: Job) -> None:
    """Train a run, from the start or from where it was interrupted; then write its results.

    On SIGTERM, SIGUSR2, SIGHUP and Ctrl-C it saves its state and raises `InterruptedRunError`.
    """
    torch.set_num_threads(job.threads)
    world = parallel.join(job.device, job.ranks)
    with stopping.noted(), exclusive(job.state) if world.is_main else nullcontext():
        found = state.find(job) if world.is_main else Found()
        meta = world.broadcast([], found.trained)
        if meta is None:
            trainer = Trainer(job, world, found)
            try:
                meta = trainer.run()
            except NonFiniteError as error:
                record = {"name": job.name, "hash": job.spec.hash, "step": trainer.progress.step}
                if world.is_main:
                    write_json(job.out / FAILED, record | {"error": str(error)})
                trainer.tracker.end(failed=True)
                raise
            finally:
                trainer.tracker.end()
                trainer.writer.join()
        if world.is_main:
            # Here, so that none stays forever after a kill just after the weights were written.
            checkpoint.prune(job.state, keep=0)
            outcome.publish(job, meta, world.size)
            (job.out / FAILED).unlink(missing_ok=True)
        # Whoever started the ranks does not wait long for the last of them: they end together.
        world.max_over_ranks(0)


class Trainer:
    """One run, from its last checkpoint (or the start) to its end."""

    def __init__(self, job: Job, world: World | None = None, found: Found | None = None) -> None:
        self.job, self.spec, self.world = job, job.spec, world or World()
        self.found = found or Found()
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
        self.steps = self.spec.steps(count(len(stream), self.spec.windows))
        self.validation = self._validation_windows()
        if self.world.is_main:
            state.require_room(job.state, self.spec)
        self.engine = Engine(self.spec, self.device, self._execution(), self.world, self.steps)
        self.model = self.engine.model
        started_over = self.found.started_over
        self.progress = Progress(compiled=self.engine.compiled, started_over=started_over)
        self.progress.where = outcome.where(job, self.world.size)
        self.writer = checkpoint.Writer(job.state)
        tracking = job.execution.tracking if self.world.is_main else None
        self.tracker = Tracker(tracking, self._say)
        #: The step of the newest checkpoint.
        self.saved = 0
        #: Seconds at the last line that was shown, and its numbers.
        self.shown, self.numbers = 0.0, dict[str, float]()

    def _execution(self) -> Execution:
        """As the job asks, but compiled only if the run began compiled, since rounding differs."""
        saved, asked = self.found.saved, self.job.execution
        began = self.world.broadcast([], saved.meta.get("compiled") if saved else None)
        if began is None:
            return asked
        if self.world.is_main and asked.compile not in ("auto", began):
            way = "compiled" if began else "without compiling"
            self._say(f"goes on {way}, as it began; execution.compile counts for runs that begin")
        return asked.model_copy(update={"compile": began})

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
        self._note_progress()
        ids = self._ids(self.progress.step)
        self._stop_if_asked()
        self._compile(ids)
        self.tracker.start(
            self.job.name, self.spec, self.job.tracking, self.job.state, self.progress.rows
        )
        # A monotonic clock: the wall clock may be set back, or jump.
        started = last_save = time.monotonic()
        before, p, execution = self.progress.seconds, self.progress, self.job.execution
        if p.step == 0:
            self._validate(0)
        with (
            tensorboard(self.job.state / "tensorboard", p.step)
            if self.world.is_main
            else (nullcontext(Board())) as board
        ):
            while p.step < self.steps:
                self._stop_if_asked()
                look = self._logs(p.step + 1)
                self.engine.step(ids, p.step, look)
                p.step += 1
                # Fetched while the device is busy.
                ids = self._ids(p.step)
                # Checking each step costs nothing on the CPU; on a GPU it waits for the device.
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
        meta = p.meta(self.spec, self.data.digest)
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

    def _compile(self, ids: Tensor) -> None:
        """Compile the step ahead of the first one, so that no step's time includes it."""
        if not self.engine.compiled or self.progress.step == self.steps:
            return
        self._say("compiles its step, which may take minutes")
        seconds = self.engine.compile(ids)
        self.progress.compile_seconds += seconds
        self._say(f"compiled in {seconds:.1f} s")

    def _stop_if_asked(self) -> None:
        number = self.world.max_over_ranks(stopping.requested())
        if not number:
            return
        stopping.request(number)  # the other ranks' too
        step = self.progress.step
        if step != self.saved:
            self._save()
        self.writer.wait()
        self._note_progress()
        self.world.max_over_ranks(0)  # the others wait for rank 0, which saves
        raise InterruptedRunError(
            f"{self.job.name}: stopped by {stopping.name(number)} at step {step} of {self.steps}; "
            f"its state is saved, the same command goes on"
        )

    def _resume(self) -> None:
        """Continue from the checkpoint that was found."""
        saved, path = self.found.saved, self.found.path
        self.found = Found()  # its tensors are needed no longer
        if saved is not None and path is not None:
            checkpoint.restore(self.model, self.engine.optimizer, saved, path)
        tensors = checkpoint.training_state(self.model, self.engine.optimizer)
        meta = self.world.broadcast(list(tensors.values()), saved.meta if saved else None)
        if meta is None:
            return
        self.progress = Progress.of(meta)
        self.progress.compiled = self.engine.compiled
        self.progress.where = outcome.where(self.job, self.world.size)
        self.progress.resumes += 1
        self.saved = self.progress.step
        self.engine.resume(self.progress.step, self.progress.skipped)
        self._say(f"resumes at step {self.progress.step} of {self.steps}")

    def _harvest(self) -> None:
        """Note which steps were left out; end the run if it has failed."""
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
        rows = trajectory.rows(step, step * per_step, "train", table, norm)
        p.rows += rows
        self.tracker.add(rows)
        old_step, old_seconds = (p.timing[-1][0], p.timing[-1][1]) if p.timing else (0, 0.0)
        speed = (step - old_step) * per_step / max(p.seconds - old_seconds, 1e-9)
        p.timing.append([step, round(p.seconds, 3), round(speed, 1)])
        if not self.world.is_main:
            return
        board.add(step, table, norm)
        left = (self.steps - step) * p.seconds / step
        ce, norm_k = table[-1].tolist()[:2]
        show = p.seconds - self.shown >= SHOW_EVERY or step in (1, self.steps)
        # A step that draws its K says which; `blindspot status` cannot, so it gets no such numbers.
        drawn = f" (k = {len(table) - 1})" if spec.objective.random_loops else ""
        self._say(
            f"step {step}/{self.steps}  CE {ce:.3f}  norm {norm_k:.1f}{drawn}  "
            f"{speed:,.0f} tokens/s  {int(left) // 60}:{int(left) % 60:02d} left",
            show,
        )
        if show:
            self.shown = p.seconds
            self.numbers = {"tokens_per_s": speed, "seconds_left": left}
            self.numbers |= {} if drawn else {"ce": ce, "norm": norm_k}
            self._note_progress()

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
        rows = trajectory.rows(step, seen, "validation", table, None)
        self.progress.rows += rows
        self.tracker.add(rows)
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
        meta = self.progress.meta(self.spec, self.data.digest)
        self.writer.start(self.progress.step, tensors, meta)
        self.saved = self.progress.step

    def _say(self, text: str, show: bool = True) -> None:
        if self.world.is_main:
            say(self.job.name, self.job.state, text, show)

    def _note_progress(self) -> None:
        """For `blindspot status`: the step, and the numbers of the line that was shown last."""
        if self.world.is_main:
            p = self.progress
            note(self.job.state, step=p.step, steps=self.steps, resumes=p.resumes, **self.numbers)
