"""Frozen dataclasses to JSON and back, with sentences instead of tracebacks for bad input.

Only what scenarios need: ``int``, ``bool``, ``str``, ``None``, ``float``, literals, unions of
these, nested dataclasses, and ``tuple[X, ...]``. Defaults are left out when writing, so that
files stay short enough to read.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from kvconform.scenario.errors import UsageError

T = TypeVar("T")


@functools.cache
def _hints(cls: Any) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def encode(value: Any) -> Any:
    """``value`` as JSON data. Fields that hold their default are left out."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            f.name: encode(getattr(value, f.name))
            for f in dataclasses.fields(value)
            if getattr(value, f.name) != f.default
        }
    if isinstance(value, tuple | list):
        return [encode(v) for v in value]
    if isinstance(value, Mapping):
        return {str(k): encode(v) for k, v in value.items()}
    return value


def decode(cls: type[T], data: Any, where: str) -> T:
    """Build ``cls`` from JSON data.

    Raises:
        UsageError: naming ``where`` and the field, when a field is unknown, missing or of another
            type.
    """
    if not isinstance(data, Mapping):
        raise UsageError(f"{where}: expected an object with fields, got {data!r}.")
    fields = {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    unknown = sorted(set(data) - set(fields))
    if unknown:
        raise UsageError(f"{where}: unknown field {unknown[0]!r}; known are {', '.join(fields)}.")
    kwargs = {}
    for name, hint in _hints(typing.cast(Any, cls)).items():
        if name not in fields:
            continue
        if name in data:
            kwargs[name] = _value(hint, data[name], f"{where}.{name}")
        elif (
            fields[name].default is dataclasses.MISSING
            and fields[name].default_factory is dataclasses.MISSING
        ):
            raise UsageError(f"{where}: the field {name!r} is missing.")
    try:
        return cls(**kwargs)
    except ValueError as error:
        raise UsageError(f"{where}: {error}") from None


def _value(hint: Any, value: Any, where: str) -> Any:
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        options = typing.get_args(hint)
        for option in options:
            if _fits(option, value):
                return _value(option, value, where)
        raise UsageError(f"{where}: {value!r} is not one of the types allowed here ({hint}).")
    if origin is tuple:
        if not isinstance(value, list):
            raise UsageError(f"{where}: expected a list, got {value!r}.")
        item = typing.get_args(hint)[0]
        return tuple(_value(item, v, f"{where}[{i}]") for i, v in enumerate(value))
    if dataclasses.is_dataclass(hint):
        return decode(typing.cast(type, hint), value, where)
    if not _fits(hint, value):
        raise UsageError(f"{where}: expected {_describe(hint)}, got {value!r}.")
    return value


def _fits(hint: Any, value: Any) -> bool:
    if hint is Any:
        return True
    if hint is None or hint is type(None):
        return value is None
    origin = typing.get_origin(hint)
    if origin is typing.Literal:
        return value in typing.get_args(hint)
    if origin is dict or origin is Mapping:
        return isinstance(value, Mapping)
    if origin is tuple:
        return isinstance(value, list)
    if dataclasses.is_dataclass(hint):
        return isinstance(value, Mapping)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(value, hint)


def _describe(hint: Any) -> str:
    if typing.get_origin(hint) is typing.Literal:
        return "one of " + ", ".join(repr(a) for a in typing.get_args(hint))
    return getattr(hint, "__name__", str(hint))
