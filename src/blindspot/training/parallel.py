"""Several devices for one run: each rank trains on its share of the same global batch.

Ranks hold equal weights, average their gradients and apply equal updates, so the number of devices
is not part of a run's identity: the losses equal those of one device, up to rounding. That holds
with dropout too, since a row's masks do not depend on the rank it is on; but on GPUs, masks of
attention weights come from the fused attention and differ by rank, and a run repeats for a given
number of ranks.

Ranks are started by `launch` on this machine, by srun, or by torchrun, and each is told so
(`--ranks`): anything else that the environment says about ranks (in an interactive Slurm step, for
example) is ignored. Only rank 0 writes.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from blindspot.errors import BlindspotError, InterruptedRunError
from blindspot.training import stopping

#: Seconds that the other ranks have to follow when one has ended.
PATIENCE = 60.0
#: What torch's name for a number of a rank is called by srun.
SLURM = {
    "WORLD_SIZE": "SLURM_STEP_NUM_TASKS",
    "RANK": "SLURM_PROCID",
    "LOCAL_RANK": "SLURM_LOCALID",
}


@dataclass(frozen=True)
class World:
    """The ranks of a run; with one rank nothing is communicated."""

    rank: int = 0
    size: int = 1
    #: The place among this machine's ranks: which of its GPUs is meant.
    local: int = 0

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    @torch.no_grad()
    def average(self, tensors: Sequence[Tensor]) -> None:
        """Average tensors over the ranks, in place, with one message.

        Shards are equal, so the mean of their means is the mean over the global batch.
        """
        if self.size == 1:
            return
        import torch.distributed as dist

        flat = torch.cat([t.reshape(-1) for t in tensors])
        dist.all_reduce(flat)
        flat /= self.size
        for tensor, piece in zip(tensors, flat.split([t.numel() for t in tensors]), strict=True):
            tensor.copy_(piece.view_as(tensor))

    def gather(self, tensor: Tensor) -> Tensor:
        """The ranks' tensors (..., n) side by side: (..., n world)."""
        if self.size == 1:
            return tensor
        import torch.distributed as dist

        parts = [torch.empty_like(tensor) for _ in range(self.size)]
        dist.all_gather(parts, tensor.contiguous())
        return torch.cat(parts, dim=-1)

    def broadcast(self, tensors: Sequence[Tensor], value: Any) -> Any:
        """Give rank 0's tensors (in place) and value to all."""
        if self.size == 1:
            return value
        import torch.distributed as dist

        with torch.no_grad():
            for tensor in tensors:
                dist.broadcast(tensor, 0)
        box = [value]
        dist.broadcast_object_list(box, 0)
        return box[0]

    def max_over_ranks(self, number: int) -> int:
        """The maximum of a small number over ranks, sent without using the device."""
        if self.size == 1:
            return number
        import torch.distributed as dist

        box = torch.tensor(number)
        dist.all_reduce(box, dist.ReduceOp.MAX, group=_control)
        return int(box)


_control: Any = None


def join(device: str, ranks: str = "none") -> World:
    """Join the world that this process was started in; returns once all ranks are there.

    `ranks` says who started it as one of several: `env`, whoever set RANK, WORLD_SIZE and so on
    for it (`launch`, torchrun); `slurm`, srun; `none`: nobody, whatever the environment contains.
    Raises `BlindspotError` if the environment lacks a variable that this needs.
    """
    global _control
    environment = os.environ
    if ranks == "none":
        return World()
    if ranks == "slurm":
        for name, source in SLURM.items():
            environment[name] = _given(source)
        environment.setdefault("MASTER_ADDR", _first_host(_given("SLURM_STEP_NODELIST")))
        # Equal for all ranks, and unlikely to be another job's.
        port = 15000 + int(_given("SLURM_JOB_ID")) % 20000
        environment.setdefault("MASTER_PORT", str(port))
    size = int(_given("WORLD_SIZE"))
    if size == 1:
        return World()
    for name in ("RANK", "MASTER_ADDR", "MASTER_PORT"):
        _given(name)
    import torch.distributed as dist

    rank, local = int(environment["RANK"]), int(environment.get("LOCAL_RANK") or 0)
    if not dist.is_initialized():
        cuda = device != "cpu" and torch.cuda.is_available()
        if cuda:
            torch.cuda.set_device(local)
        dist.init_process_group("nccl" if cuda else "gloo", rank=rank, world_size=size)
        _control = dist.new_group(backend="gloo") if cuda else None
    return World(rank, size, local)


def _given(name: str) -> str:
    """A variable of the environment that a rank needs."""
    if not (value := os.environ.get(name)):
        raise BlindspotError(
            f"{name} is not set, so this process can't be one of several ranks; start ranks with "
            f"--gpus N, with `srun blindspot train --ranks slurm`, or with torchrun and --ranks env"
        )
    return value


def _first_host(nodes: str) -> str:
    """The first host of Slurm's list, whose short form only Slurm reads."""
    done = subprocess.run(["scontrol", "show", "hostnames", nodes], capture_output=True, text=True)
    if done.returncode or not done.stdout.split():
        raise BlindspotError(
            f"SLURM_STEP_NODELIST: scontrol cannot read {nodes!r} ({done.stderr.strip()}); set "
            f"MASTER_ADDR and MASTER_PORT to a host of rank 0 and a free port"
        )
    return done.stdout.split()[0]


def launch(ranks: int) -> int:
    """Run this same command once per rank on this machine; returns the exit code of the run.

    Signals go to all ranks. When a rank fails, the others are stopped, as they would wait for it.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "blindspot.cli", *sys.argv[1:], "--ranks", "env"],
            env=os.environ | shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(ranks)
    ]
    passed, deadline = 0, None
    try:
        # Each is asked: an end that nobody asks for is not seen.
        while None in [p.poll() for p in processes]:
            number = stopping.requested()
            if number and not passed:
                passed = number
                for process in processes:
                    process.send_signal(number)
            ended = [p.returncode for p in processes if p.returncode is not None]
            if ended and deadline is None:
                deadline = time.monotonic() + (PATIENCE if ended[0] in (0, 85) else 5.0)
            if deadline is not None and time.monotonic() > deadline:
                break
            time.sleep(0.05)
    finally:
        for process in processes:
            with suppress(ProcessLookupError):
                if process.poll() is None:
                    process.send_signal(signal.SIGKILL)
                    process.wait()
    codes = [p.returncode for p in processes]
    # Rank 0 speaks for the run; one that was killed from outside speaks before one that waited.
    own = InterruptedRunError.exit_code
    if all(code == 0 for code in codes):
        return 0
    return own if all(code in (0, own) for code in codes) else next(c for c in codes if c) % 256
