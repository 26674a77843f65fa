"""What pydantic found wrong with a config, in words for whoever wrote it."""

import json

from pydantic import BaseModel, ValidationError


def explain(error: ValidationError, where: str) -> str:
    """One line a fault: the key, its value, what would be right."""
    return "\n".join(f"{where}: {fault}" for fault in faults(error))


def faults(error: ValidationError, within: str = "") -> list[str]:
    """Each fault: the key (below `within`, if it is of a part of the config), and what is wrong."""
    lines = []
    found = error.errors(include_url=False)
    refused = [_key(fault["loc"]) for fault in found if fault["type"] == "value_error"]
    for fault in found:
        key = _key(fault["loc"])
        # Of a value that may be of several types, those that it is not of go without saying.
        bare = key.removesuffix(".float")
        if fault["type"].endswith("_type") and any(k.startswith(bare) for k in refused):
            continue
        message = fault["msg"].removeprefix("Value error, ")
        value = fault["input"]
        if fault["loc"][-1:] == ("[key]",):
            key = ".".join(map(str, fault["loc"][:-2]))
            message = (
                "a name has at most 60 of a-z, 0-9, '.' and '-', and begins with a letter or digit"
            )
        elif fault["type"] == "extra_forbidden":
            message = "unknown key; check its spelling against config.yaml"
        elif fault["type"] == "missing":
            message, value = "missing", None
        elif fault["type"] == "string_type" and isinstance(value, (bool, int, float)):
            message += "; put it in quotes"
        shown = ""
        if not isinstance(value, (dict, BaseModel)) and fault["type"] != "missing":
            shown = f" (got {json.dumps(value, default=str)})"
        if within:
            key = f"{within}.{key}" if fault["loc"] else within
        lines.append(f"{key}: {message}{shown}")
    return lines


def _key(place: tuple[int | str, ...]) -> str:
    """The key as it was typed: pydantic adds the tags of unions, and types such as `list[str]`."""
    typed = [str(part) for part in place if part not in _tags()]
    return ".".join(part for part in typed if part == "[key]" or "[" not in part) or "config"


def _tags() -> set[str]:
    return {"enwiki-sample", "hub", "local", "bpe", "words", "file", "gpt2"}
