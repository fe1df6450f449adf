"""Option values that need more than a type."""

from __future__ import annotations

import dataclasses
import os
import re
import typing
from collections.abc import Iterable
from typing import Any

from kvconform.conformance.pool import Limits
from kvconform.scenario.errors import UsageError
from kvconform.scenario.shape import Shape

_SHORT = {"async": "async_scheduling", "blocks": "num_blocks", "policy": "load_failure_policy"}
_UNITS = {"s": 1, "m": 60, "h": 3600}


def seconds(text: str, option: str) -> float:
    """``90s``, ``5m``, ``1h`` or a number of seconds.

    Raises:
        UsageError: it is none of these.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text)
    if not found or float(found[1]) <= 0:
        raise UsageError(f"{option} is a time such as 90s, 5m or 1h, got {text!r}.")
    return float(found[1]) * _UNITS[found[2] or "s"]


def limits(hang: str, memory: str) -> Limits:
    """Limits of a process from ``--hang-limit`` and ``--memory-limit``.

    Raises:
        UsageError: one of them is no time, or no size.
    """
    found = re.fullmatch(r"(\d+)([mg])", memory.lower())
    if not found or not int(found[1]):
        raise UsageError(f"--memory-limit is a size such as 800m or 6g, got {memory!r}.")
    size = int(found[1]) << (30 if found[2] == "g" else 20)
    return Limits(hang=seconds(hang, "--hang-limit"), memory=size)


def processes(text: str) -> int:
    """A number of processes from ``-n``; ``auto``: as many as there are cores.

    Raises:
        UsageError: it is neither.
    """
    if text == "auto":
        return os.cpu_count() or 1
    if not re.fullmatch(r"[1-9]\d?", text):
        raise UsageError(f"-n is a number of processes from 1 to 99, or 'auto', got {text!r}.")
    return int(text)


def level(text: str, known: Iterable[str]) -> str:
    """A level by name.

    Raises:
        UsageError: there is none.
    """
    names = list(known)
    if text.upper() not in names:
        raise UsageError(f"There is no level {text!r}; choose from {', '.join(names)}.")
    return text.upper()


def shape(text: str, policy: str = "both") -> dict[str, Any]:
    """Fixed fields of the shape from ``tp=2,async=on``.

    Raises:
        UsageError: an unknown field, or a value that does not fit.
    """
    fields = {f.name: f for f in dataclasses.fields(Shape)}
    out: dict[str, Any] = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        name, equals, value = part.partition("=")
        name = _SHORT.get(name, name)
        if not equals or name not in fields:
            raise UsageError(
                f"--shape: {part!r} is not field=value; fields are {', '.join([*_SHORT, *fields])}."
            )
        out[name] = _value(name, value, type(fields[name].default))
    if policy != "both":
        out["load_failure_policy"] = policy
    try:
        Shape().fixed(out)
    except ValueError as error:
        raise UsageError(f"--shape: {error}.") from None
    return out


def _value(name: str, text: str, kind: type) -> Any:
    if kind is bool:
        if text.lower() in ("on", "true", "yes", "1"):
            return True
        if text.lower() in ("off", "false", "no", "0"):
            return False
        raise UsageError(f"--shape: {name} is on or off, got {text!r}.")
    if kind is int:
        if not re.fullmatch(r"\d+", text):
            raise UsageError(f"--shape: {name} is a number, got {text!r}.")
        return int(text)
    choices = typing.get_args(typing.get_type_hints(Shape)[name])
    if text not in choices:
        raise UsageError(f"--shape: {name} is {' or '.join(choices)}, got {text!r}.")
    return text
