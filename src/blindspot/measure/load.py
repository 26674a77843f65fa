"""Loading a trained run for measurement: its weights in evaluation mode, its tokens."""

import sys
from pathlib import Path

import torch

from blindspot.config.spec import RunSpec
from blindspot.data.tokens import Tokens, require_same
from blindspot.errors import BlindspotError
from blindspot.lm.model import LoopedLM
from blindspot.tensorfile import load, read


def model(spec: RunSpec, weights: Path, device: torch.device, tokens: Tokens) -> LoopedLM:
    """The run's model with its final weights, float32, dropout off, no gradients to parameters.

    Raises `BlindspotError` where the weights are of another run, or were trained on other tokens.
    """
    if not weights.exists():
        raise BlindspotError(
            f"{weights}: the weights of this run are gone, so it can't be measured again. Train it "
            f"again (delete its folder under results/ and run the workflow), or restore the file"
        )
    saved = read(weights)
    if saved.meta["run"] != spec.hash:
        raise BlindspotError(
            f"{weights}: weights of run {saved.meta['run']}, not of {spec.hash}; move the file away"
        )
    if unknown := require_same(tokens, saved.meta.get("tokens"), weights):
        print(unknown, file=sys.stderr)
    with torch.random.fork_rng(devices=[]):  # the initial weights are drawn only to be replaced
        built = LoopedLM(spec.model)
    load(dict(built.named_parameters()), saved, weights)
    return built.to(device).eval().requires_grad_(False)
