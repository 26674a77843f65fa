"""A study's own claims (criteria.py) as they are judged: each cell filled in, and checked against
what the study has.
"""

from typing import Any

from pydantic import ValidationError

from blindspot.config.criteria import POSITIVE, Beyond, Compared, OneClaim, Part, Predicted, Slope
from blindspot.config.explain import faults
from blindspot.config.schema import Config
from blindspot.config.sweeps import own


def judged(config: Config) -> dict[str, OneClaim]:
    """The claims of a study whose sweeps are expanded, one for each cell of `each`.

    Raises ValueError that names the key and what is wrong with it.
    """
    found: dict[str, OneClaim] = {}
    for name, claim in config.claims.items():
        for cell in claim.each or ("",):
            where = f"claims.{name}"
            value = {
                "claim": _filled(claim.claim, cell),
                "parts": [_filled(part, cell) for part in claim.parts],
            }
            try:
                one = OneClaim.model_validate(value)
            except ValidationError as error:
                raise ValueError("; ".join(faults(error, where))) from None
            for at, part in enumerate(one.parts):
                _check(config, part, f"{where}.parts.{at}")
            found[f"{name}.{cell}" if cell else name] = one
    return found


def _filled(value: Any, cell: str) -> Any:
    if isinstance(value, str):
        return value.replace("{cell}", cell) if cell else value
    if isinstance(value, dict):
        return {key: _filled(x, cell) for key, x in value.items()}
    if isinstance(value, list | tuple):
        return [_filled(x, cell) for x in value]
    return value


def _check(config: Config, part: Part, where: str) -> None:
    for cell in part.cells:
        if cell not in config.cells:
            raise ValueError(
                f"{where}: the study has no cell {cell}, but {', '.join(config.cells)}"
            )
    if isinstance(part, Slope):
        log_x = not part.axes.endswith("-linear")
        _swept(config, part.sweep, part.cell, f"{where}.sweep", log_x)
        if part.axes.startswith("log-") and part.of not in POSITIVE:
            raise ValueError(
                f"{where}.axes: {part.of} may be negative, so it has no logarithm; "
                f"use linear-log2 or linear-linear"
            )
    elif isinstance(part, Compared):
        signs = {value in POSITIVE for value in (part.of, part.to or part.of)}
        if part.quantity == "ratio" and signs != {True}:
            raise ValueError(f"{where}: a ratio is of {', '.join(sorted(POSITIVE))}")
    elif isinstance(part, Beyond):
        loops = config.cells[part.cell].shared(config.model).loops
        depths = {*config.measurement.depths_beyond, *range(1, loops + 1)}
        for depth in (*part.ladder, part.at):
            if depth not in depths:
                raise ValueError(
                    f"{where}: exit {depth} is not scored; add it to measurement.depths_beyond"
                )
    elif isinstance(part, Predicted):
        for sweep in part.sweeps:
            key = _swept(config, sweep, part.cell, f"{where}.sweeps", log=True)
            for left in part.left_out:
                if not isinstance(own(config, config.cells[left], key), float):
                    raise ValueError(f"{where}.left_out: {left} has no number under {key}")


def _swept(config: Config, sweep: str, cell: str, where: str, log: bool) -> str:
    """The key of a sweep of one key, whose values are numbers; positive ones if `log`."""
    if sweep not in config.sweeps:
        raise ValueError(
            f"{where}: the study has no sweep {sweep}, but {', '.join(config.sweeps) or 'none'}"
        )
    chosen = config.sweeps[sweep]
    if cell not in chosen.cells:
        raise ValueError(
            f"{where}: sweep {sweep} has no cell {cell}, but {', '.join(chosen.cells)}"
        )
    if len(chosen.over) != 1:
        raise ValueError(f"{where}: sweep {sweep} is over {len(chosen.over)} keys; one is needed")
    ((key, values),) = chosen.over.items()
    numbers = [x for x in values if isinstance(x, int | float) and not isinstance(x, bool)]
    if len(numbers) < len(values) or len(set(numbers)) < 2:
        raise ValueError(f"{where}: sweep {sweep} needs two numbers or more, and numbers alone")
    if log and min(numbers) <= 0:
        raise ValueError(f"{where}: sweep {sweep} has {min(numbers)}, which has no logarithm")
    return key


def described(config: Config) -> dict[str, Any]:
    """The claims as study.json has them, with what left-out cells have of each swept key."""
    found: dict[str, Any] = {}
    for name, claim in judged(config).items():
        value = claim.model_dump(mode="json")
        for part, shown in zip(claim.parts, value["parts"], strict=True):
            if isinstance(part, Predicted):
                keys = [next(iter(config.sweeps[sweep].over)) for sweep in part.sweeps]
                shown["settings"] = {
                    cell: {key: own(config, config.cells[cell], key) for key in keys}
                    for cell in part.cells
                }
        found[name] = value
    return found
