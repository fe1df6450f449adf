"""From what the user wrote to a target: a known name, a TOML file, or ``package.module:Class``."""

from __future__ import annotations

import dataclasses
import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvconform.connectors.targets.known import KNOWN
from kvconform.scenario.codec import decode
from kvconform.scenario.errors import UsageError
from kvconform.scenario.shape import Shape
from kvconform.scenario.target import DEVICES, FEATURES, Target

_CLASS = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
ROLES = ("kv_both", "kv_producer", "kv_consumer")


def resolve(text: str) -> Target:
    """The target behind a name, a TOML file, or a class.

    Raises:
        UsageError: it is none of these.
    """
    for target in KNOWN:
        if target.name == text:
            return target
    if text.endswith(".toml"):
        return from_toml(Path(text))
    if text.startswith("zoo:") or not _CLASS.fullmatch(text):
        names = ", ".join(t.name for t in KNOWN)
        raise UsageError(
            f"There is no target {text!r}: give one of {names}; or package.module:Class; or a "
            "TOML file."
        )
    return Target(text, text)


def from_toml(path: Path) -> Target:
    """A target from a TOML file; its keys are the fields of :class:`Target`.

    Raises:
        UsageError: it cannot be read, or does not describe a target.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"Cannot read the target file {path}: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise UsageError(f"The target file {path} is not UTF-8 text.") from None
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"The target file {path} is not TOML: {error}.") from None
    data.setdefault("name", path.stem)
    target = decode(Target, data, str(path))
    if not _CLASS.fullmatch(target.cls):
        raise UsageError(f"{path}: cls must be package.module:Class, got {target.cls!r}.")
    if target.scheduler and not _CLASS.fullmatch(target.scheduler):
        raise UsageError(
            f"{path}: scheduler must be package.module:Class, got {target.scheduler!r}."
        )
    if target.prepare and not _CLASS.fullmatch(target.prepare):
        raise UsageError(
            f"{path}: prepare must be package.module:function, got {target.prepare!r}."
        )
    decode(Shape, target.shape, f"{path}: shape")  # its fields are fields of the shape
    return checked(target, str(path))


def with_flags(
    target: Target,
    *,
    role: str | None,
    extra: str | None,
    world: str | None = None,
    tolerant: str = "",
    device: str | None = None,
) -> Target:
    """A target with what flags say; flags override.

    Raises:
        UsageError: a flag makes no sense.
    """
    changes: dict[str, Any] = {}
    if role is not None:
        changes["role"] = role
    if extra is not None:
        changes["extra"] = {**target.extra, **json_object(extra)}
    if tolerant:
        changes["tolerant"] = tuple(filter(None, (r.strip().upper() for r in tolerant.split(","))))
    if world is not None:
        changes["world"] = world
    if device is not None:
        if device not in DEVICES:
            raise UsageError(f"--device is {' or '.join(DEVICES)}, got {device!r}.")
        changes["device"] = device
        if device == "ascend-sim":
            changes["caches"] = "pairs"  # what vllm-ascend registers
    return checked(dataclasses.replace(target, **changes), "--role")


def json_object(extra: str) -> dict[str, Any]:
    """What ``--extra`` says.

    Raises:
        UsageError: it is no JSON object.
    """
    try:
        parsed = json.loads(extra)
    except json.JSONDecodeError as error:
        raise UsageError(
            f"--extra is not JSON: {error.msg} in column {error.colno}; it looks like "
            """--extra '{"key": "value"}'."""
        ) from None
    if not isinstance(parsed, dict):
        raise UsageError(f"--extra must be a JSON object, got {extra}.")
    return parsed


def checked(target: Target, where: str) -> Target:
    """The target, if its role, its features and its dialect are such.

    Raises:
        UsageError: they are not.
    """
    for feature in target.features:
        if feature not in FEATURES:
            raise UsageError(
                f"{where}: there is no feature {feature!r}; known are {', '.join(FEATURES)}."
            )
    if set(target.dialect) - {"prefill", "decode"} or not all(
        isinstance(said, Mapping) for said in target.dialect.values()
    ):
        raise UsageError(f"{where}: dialect has the tables 'prefill' and 'decode' and no other.")
    if target.device not in DEVICES:
        raise UsageError(
            f"{where}: there is no device {target.device!r}; known are {', '.join(DEVICES)}."
        )
    if target.role not in ROLES:
        raise UsageError(f"{where}: role must be one of {', '.join(ROLES)}, got {target.role!r}.")
    return target
