"""YAML as people mean it: no key twice, numbers as YAML 1.2 has them, keys as they are typed.

PyYAML reads YAML 1.1, in which `042` is 34, `1:30` is 90, `no` is false, and the last of two equal
keys wins. Any of these would be another experiment without a word. Here

- a key is the text that stands there, so a cell may be called `no`, `null` or `1e5`;
- a key that is given twice, at any depth, is refused with both lines;
- `yes`, `no`, `on` and `off` are text, `3e-4` is a number;
- a number that the versions of YAML read differently (`042`, `1_000`, `1:30`, `0b11`) is refused.

Files and `--config` are read alike. Imports no torch: Snakemake parses this in every job.
"""

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import yaml

from blindspot.errors import BlindspotError

#: Characters of the longest whole number: of longer ones, which no setting has, Python refuses to
#: print some.
LONGEST = 100

_TAG = "tag:yaml.org,2002:"
#: What plain scalars are by YAML 1.2's core schema (and `<<`), and what they begin with.
_SCALARS = (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", [*"tTfF"]),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", [*"-+0123456789"]),
    (
        "float",
        r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
        r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        [*"-+.0123456789"],
    ),
    ("merge", r"<<", ["<"]),
)
#: PyYAML's own reading, which is YAML 1.1's.
_OLD = yaml.resolver.Resolver()


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {}
    # What a config is made of; another tag is refused.
    yaml_constructors: ClassVar[dict[Any, Any]] = {
        tag: make
        for tag, make in yaml.SafeLoader.yaml_constructors.items()
        if tag in (None, *(_TAG + name for name in ("null", "seq", "map")))
    }

    def compose_node(self, parent: Any, index: Any) -> yaml.Node:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()
            named = self.anchors.get(event.anchor)
            if named is not None and named.end_mark is None:
                raise _fault(event, f"*{event.anchor} is inside the value that it names")
        return super().compose_node(parent, index)

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """Keys become text, and each may be there once; what `<<` brings in is no repetition."""
        node = super().compose_mapping_node(anchor)
        lines: dict[str, int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise _fault(key, "a list or a map can't be a key")
            if key.tag == _TAG + "merge":
                continue
            if key.value in lines:
                before = lines[key.value]
                raise _fault(key, f"key {key.value!r} is in line {before} already; keep one")
            lines[key.value] = key.start_mark.line + 1
            key.tag, key.style = _TAG + "str", '"'
        return node

    def text(self, node: yaml.ScalarNode) -> str:
        plain = node.style is None
        if plain and _OLD.resolve(yaml.ScalarNode, node.value, (True, False)) in (
            _TAG + "int",
            _TAG + "float",
        ):
            raise _doubtful(node)
        return str(self.construct_scalar(node))

    def whole(self, node: yaml.ScalarNode) -> int:
        text = str(self.construct_scalar(node))
        if re.match(r"[-+]?0[0-9]", text):
            raise _doubtful(node)
        if len(text) > LONGEST:
            raise _fault(node, f"a number of {len(text)} characters; no setting is so large")
        try:
            return int(text, 0)
        except ValueError:  # `!!int` before something else
            raise _fault(node, f"{text!r} is not a whole number") from None

    def truth(self, node: yaml.ScalarNode) -> bool:
        text = str(self.construct_scalar(node))
        if text.lower() not in ("true", "false"):  # `!!bool` before something else
            raise _fault(node, f"{text!r} is neither true nor false")
        return text.lower() == "true"

    def real(self, node: yaml.ScalarNode) -> float:
        text = str(self.construct_scalar(node))
        if re.match(r"[-+]?0[0-9]", text):
            raise _doubtful(node)
        try:
            return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
        except ValueError:
            raise _fault(node, f"{text!r} is not a number") from None


for _name, _pattern, _begin in _SCALARS:
    _Loader.add_implicit_resolver(_TAG + _name, re.compile(rf"(?:{_pattern})\Z"), _begin)
_Loader.add_constructor(_TAG + "str", _Loader.text)
_Loader.add_constructor(_TAG + "int", _Loader.whole)
_Loader.add_constructor(_TAG + "bool", _Loader.truth)
_Loader.add_constructor(_TAG + "float", _Loader.real)


def _fault(node: yaml.Node | yaml.Event, message: str) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=message, problem_mark=node.start_mark)


def _doubtful(node: yaml.ScalarNode) -> yaml.MarkedYAMLError:
    return _fault(
        node,
        f"{node.value} is not the same number to every reader of YAML; write it without leading "
        f"zeros, underscores and colons, or in quotes where it is text",
    )


def parse(text: str, where: str) -> Any:
    """The value of a YAML text. Raises `BlindspotError` that begins with `where` and the line."""
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        line = f" line {error.problem_mark.line + 1}:" if error.problem_mark else ""
        context = f" {error.context}" if error.context else ""
        ours = type(error) is yaml.MarkedYAMLError
        said = f"{error.problem}" if ours else f"not valid YAML:{context} {error.problem}"
        raise BlindspotError(f"{where}:{line} {said}") from None
    except yaml.YAMLError as error:
        raise BlindspotError(f"{where}: not valid YAML: {error}") from None
    except RecursionError:
        raise BlindspotError(f"{where}: not readable: nested too deeply") from None


def read(path: Path) -> dict[str, Any]:
    """The keys and values of a config file."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise BlindspotError(f"{path}: no such config file") from None
    except UnicodeDecodeError as error:
        raise BlindspotError(f"{path}: not valid YAML: {error}") from None
    except OSError as error:
        raise BlindspotError(f"{path}: cannot be read ({error.strerror})") from None
    values = parse(text, str(path))
    if not isinstance(values, dict):
        raise BlindspotError(f"{path}: expected keys with values, got {values!r}")
    return values


def command_line(entries: Sequence[str]) -> dict[str, Any]:
    """The settings of `--config KEY=VALUE ...`, from the words as they were typed."""
    values: dict[str, Any] = {}
    for entry in entries:
        key, equals, text = entry.partition("=")
        if not equals:
            raise BlindspotError(f"--config: {entry!r} is not KEY=VALUE")
        if key in values:
            raise BlindspotError(f"--config: key {key!r} is given twice; keep one of them")
        values[key] = parse(text, f"--config {key}")
    return values


def from_json(text: str, where: str) -> dict[str, Any]:
    """The settings of an `--override`, which is JSON; a key that is given twice is refused."""
    try:
        values = json.loads(text, object_pairs_hook=_once)
    except ValueError as error:
        raise BlindspotError(f"{where}: not usable as JSON: {error}; got {text}") from None
    if not isinstance(values, dict):
        raise BlindspotError(f"{where}: expected keys with values, got {text}")
    return values


def _once(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"key {key!r} is given twice")
        found[key] = value
    return found
