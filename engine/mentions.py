"""Where an object of the target still mentions a name: what it keeps for those who have gone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
