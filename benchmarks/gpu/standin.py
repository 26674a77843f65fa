"""Just enough of pydantic to read settings that are already right, where pydantic is missing.

A GPU machine may have torch and nothing else. The benchmark's settings are constants, which a test
checks with the real pydantic, so here they need only be read: nested settings, defaults, whole
numbers given for floats, and the validators that a class has. Limits of numbers and patterns of
texts are not checked. Where pydantic can be imported, none of this is used.
"""

import json
import sys
import types
import typing
from collections.abc import Callable, Container, Mapping
from typing import Any, ClassVar, Self


class _Field:
    """`Field(default, **limits)`; limits are not looked at."""

    def __init__(self, default: Any = ..., **_limits: Any) -> None:
        self.default = default


class BaseModel:
    """Settings by name, with defaults; nested ones may be given as dictionaries."""

    model_config: ClassVar[dict[str, Any]] = {}

    def __init__(self, **values: Any) -> None:
        hints = _fields(type(self))
        if unknown := sorted(set(values) - set(hints)):
            raise ValueError(f"{type(self).__name__}: unknown {', '.join(unknown)}")
        for name, hint in hints.items():
            value = values[name] if name in values else _default(type(self), name)
            self.__dict__[name] = _fit(hint, value)
        for check in _checks(type(self)):
            check(self)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{type(self).__name__} is frozen")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, type(self)) and other.model_dump() == self.model_dump()

    def __hash__(self) -> int:
        return hash(json.dumps(self.model_dump(), sort_keys=True))

    def model_dump(self, *, mode: str = "json", exclude: Container[str] = ()) -> dict[str, Any]:
        """The JSON value: tuples become lists, nested settings dictionaries."""
        names = [name for name in _fields(type(self)) if name not in exclude]
        return {name: _plain(getattr(self, name)) for name in names}

    def model_copy(self, *, update: Mapping[str, Any] | None = None) -> Self:
        kept = {name: getattr(self, name) for name in _fields(type(self))}
        return type(self)(**(kept | dict(update or {})))

    @classmethod
    def model_validate(cls, value: Any) -> Self:
        return value if isinstance(value, cls) else cls(**value)

    @classmethod
    def model_validate_json(cls, text: str) -> Self:
        return cls(**json.loads(text))


def _fields(cls: type) -> dict[str, Any]:
    hints = typing.get_type_hints(cls, include_extras=True)
    return {n: h for n, h in hints.items() if typing.get_origin(h) is not ClassVar}


def _default(cls: type, name: str) -> Any:
    value = getattr(cls, name, ...)
    value = value.default if isinstance(value, _Field) else value
    if value is ...:
        raise ValueError(f"{cls.__name__}: {name} is missing")
    return value


def _checks(cls: type) -> list[Callable[[Any], Any]]:
    return [
        value
        for base in reversed(cls.__mro__)
        for value in vars(base).values()
        if getattr(value, "checks_model", False)
    ]


def _fit(hint: Any, value: Any) -> Any:
    """`value` as the annotation has it."""
    origin, choices = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return _fit(choices[0], value)
    if origin in (typing.Union, types.UnionType):
        return _one(choices, value)
    if origin is tuple:
        inner = choices[0]
        return tuple(_fit(inner, item) for item in value)
    if isinstance(hint, type) and issubclass(hint, BaseModel):
        return hint.model_validate(value)
    return float(value) if hint is float else value


def _one(choices: tuple[Any, ...], value: Any) -> Any:
    """`value` as the first of a union's choices that takes it."""
    if value is None:
        return None
    for choice in choices:
        settings = isinstance(choice, type) and issubclass(choice, BaseModel)
        if settings == isinstance(value, (dict, BaseModel)):
            return _fit(choice, value)
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump()
    return [_plain(item) for item in value] if isinstance(value, (tuple, list)) else value


def _model_validator(**_mode: Any) -> Callable[[Any], Any]:
    def mark(function: Any) -> Any:
        function.checks_model = True
        return function

    return mark


def install() -> None:
    """Stand in for pydantic where it cannot be imported."""
    try:
        import pydantic  # noqa: F401
    except ImportError:
        pass
    else:
        return
    module = types.ModuleType("pydantic", __doc__)
    module.__dict__.update(
        BaseModel=BaseModel,
        ConfigDict=dict,
        Field=_Field,
        AfterValidator=lambda function: function,
        model_validator=_model_validator,
    )
    sys.modules["pydantic"] = module
