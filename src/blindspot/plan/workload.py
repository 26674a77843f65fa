"""What a step and a measurement amount to: FLOPs, and which runs' steps take equally long.

Imports neither torch nor pandas.
"""

from collections.abc import Iterable

from blindspot.config.flops import forward_per_token, training_per_token
from blindspot.config.spec import Measurement, ModelSpec, RunSpec
from blindspot.declared import MEASUREMENTS
from blindspot.settings import digest


def step_class(spec: RunSpec) -> str:
    """A key that runs share whose steps take equally long: shape, objective, batch, precision."""
    model = spec.model.model_dump(mode="json", exclude={"readout", "init_std", "norm_eps"})
    model["dropout"]["rate"] = spec.model.dropout.rate > 0
    # Named only where it counts, so that what was timed before keeps its key.
    random = {"random_loops": True} if spec.objective.random_loops else {}
    return digest(
        {
            "model": model,
            "loss": spec.objective.loss,
            "penalty": spec.objective.penalty is not None,
            "batch": spec.batch,
            "precision": spec.training.precision,
        }
        | random
    )


def classes(specs: Iterable[RunSpec]) -> dict[str, RunSpec]:
    """One specification a class."""
    found: dict[str, RunSpec] = {}
    for spec in specs:
        found.setdefault(step_class(spec), spec)
    return found


def step_flops(spec: RunSpec) -> float:
    """FLOPs of an optimizer step."""
    per_token = training_per_token(spec.model, spec.objective)
    return per_token * spec.batch * spec.windows.length


def measurement_flops(model: ModelSpec, settings: Measurement, evaluated: int) -> dict[str, float]:
    """FLOPs of each measurement of a run, roughly; `evaluated` tokens in validation and test.

    Every exit in protocol full and another pass over the splits; norms; gradients of all depths
    (each a backward pass) and updates in float64, which counts twice; clamps and halting. One that
    is not named here is taken to cost what norms do.
    """
    T = model.context
    deepest = max((model.loops, *settings.depths_beyond))
    depths = model.loops + len(settings.depths_beyond)
    passes = T / (T - settings.min_context) + 1
    heads = forward_per_token(model, heads=model.loops)
    norms = settings.norm_tokens * forward_per_token(model, heads=0)
    known = {
        "baselines": 0.0,
        "exits": evaluated * passes * forward_per_token(model, deepest, depths),
        "gradients": 2 * 3 * settings.probe_tokens * model.loops * forward_per_token(model),
        "updates": 2
        * settings.probe_tokens
        * 2
        * forward_per_token(model, settings.update_loops, 0),
        "clamp": 2 * settings.intervention_tokens * heads,
        "halting": 3 * settings.intervention_tokens * heads,
    }
    return {name: known.get(name, norms) for name in MEASUREMENTS}
