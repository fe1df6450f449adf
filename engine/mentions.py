"""What objects of the target mention: requests that have gone, and plans of a step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_DEPTH = 5
_PLAIN = (str, bytes, int, float, bool, type(None))


def mentions(
    root: Any, names: frozenset[str], packages: frozenset[str]
) -> Iterator[tuple[str, str]]:
    """Names that are keys or elements of a container below ``root``, with where.

    Only objects whose class is of one of ``packages`` are looked into, and plain containers: what
    belongs to vLLM or to the harness is not the target's memory.
    """
    seen: set[int] = set()

    def look(value: Any, where: str, depth: int) -> Iterator[tuple[str, str]]:
        if isinstance(value, _PLAIN) or id(value) in seen or depth > _DEPTH:
            return
        seen.add(id(value))
        if isinstance(value, Mapping):
            yield from ((key, where) for key in value if isinstance(key, str) and key in names)
            for inner in list(value.values()):
                yield from look(inner, where, depth + 1)
        elif isinstance(value, list | tuple | set | frozenset):
            for inner in list(value):
                if isinstance(inner, str) and inner in names:
                    yield inner, where
                else:
                    yield from look(inner, where, depth + 1)
        elif type(value).__module__.partition(".")[0] in packages or any(
            type(value).__module__.startswith(f"{package}.") for package in packages
        ):
            for name, inner in sorted(vars(value).items()) if hasattr(value, "__dict__") else ():
                yield from look(inner, f"{type(value).__name__}.{name}", depth + 1)

    yield from look(root, type(root).__name__, 0)


@dataclass(slots=True)
class Said:
    """What metadata speaks of.

    Attributes:
        names: strings in it.
        numbers: whole numbers in it.
        lists: lists of whole numbers in it.
        opaque: there is more in it, in a form that cannot be read: encoded, or in tensors.
    """

    names: set[str] = field(default_factory=set)
    numbers: set[int] = field(default_factory=set)
    lists: set[tuple[int, ...]] = field(default_factory=set)
    opaque: bool = False


_MOST = 5000
"""Objects of one metadata that are looked into."""

_KEY = 64
"""Bytes that a name in a store may have; more are something encoded."""


def said(root: Any) -> Said:
    """What the metadata of a step speaks of, whatever it is made of."""
    found, seen, left = Said(), set[int](), [root]
    while left and len(seen) < _MOST:
        value = left.pop()
        if isinstance(value, str):
            found.names.add(value)
        elif isinstance(value, int):
            found.numbers.add(value)
        elif isinstance(value, bytes | bytearray):
            found.opaque |= len(value) > _KEY
        elif id(value) not in seen:
            seen.add(id(value))
            if isinstance(value, Mapping):
                left += [*value.keys(), *value.values()]
            elif isinstance(value, list | tuple | set | frozenset):
                left += value
                if not isinstance(value, set | frozenset) and _numbers(value):
                    found.lists.add(tuple(value))
            else:
                inner = _fields(value)
                found.opaque |= not inner and hasattr(value, "__len__")
                left += inner
    return found


def _numbers(value: Sequence[Any]) -> bool:
    return bool(value) and all(isinstance(inner, int) for inner in value)


def _fields(value: Any) -> list[Any]:
    slots = [name for cls in type(value).__mro__ for name in getattr(cls, "__slots__", ())]
    return [*vars(value).values()] if hasattr(value, "__dict__") else [
        getattr(value, name) for name in slots if hasattr(value, name)
    ]  # fmt: skip
