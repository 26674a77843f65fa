"""What differs between two specifications, in dotted keys: `training.learning_rate 0.001 -> 0.002`.

Imports neither torch nor pandas.
"""

import json
from collections.abc import Mapping
from typing import Any

#: Stands for a key that one side lacks; a value in JSON cannot be it.
ABSENT = "(none)"


def differences(
    old: Mapping[str, Any], new: Mapping[str, Any], at: str = ""
) -> dict[str, tuple[Any, Any]]:
    """Dotted key to (old, new) for each value that differs; `ABSENT` where a side has no key.

    Maps are compared key by key, everything else (lists too) as a whole.
    """
    found: dict[str, tuple[Any, Any]] = {}
    for key in dict.fromkeys([*old, *new]):
        a, b = old.get(key, ABSENT), new.get(key, ABSENT)
        name = f"{at}{key}"
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            found |= differences(a, b, f"{name}.")
        elif a != b:
            found[name] = (a, b)
    return found


def shown(found: Mapping[str, tuple[Any, Any]]) -> str:
    """Differences on one line."""
    return "; ".join(f"{key} {text(old)} -> {text(new)}" for key, (old, new) in found.items())


def text(value: Any) -> str:
    """A value as a config would have it."""
    return value if value is ABSENT else json.dumps(value, ensure_ascii=False)
