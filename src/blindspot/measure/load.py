"""Loading a trained run for measurement: its weights in evaluation mode, its tokens."""

from pathlib import Path

import torch

from blindspot import checkpoint
from blindspot.errors import BlindspotError
from blindspot.model import LoopedLM
from blindspot.spec import RunSpec


def model(spec: RunSpec, weights: Path, device: torch.device) -> LoopedLM:
    """The run's model with its final weights, float32, dropout off, no gradients to parameters."""
    if not weights.exists():
        raise BlindspotError(
            f"{weights}: the weights of this run are gone, so it can't be measured again. Train it "
            f"again (delete its folder under results/ and run the workflow), or restore the file"
        )
    saved = checkpoint.read(weights)
    if saved.meta["run"] != spec.hash:
        raise BlindspotError(
            f"{weights}: weights of run {saved.meta['run']}, not of {spec.hash}; move the file away"
        )
    with torch.random.fork_rng(devices=[]):  # the initial weights are drawn only to be replaced
        built = LoopedLM(spec.model)
    checkpoint.restore(built, None, saved, weights)
    return built.to(device).eval().requires_grad_(False)
