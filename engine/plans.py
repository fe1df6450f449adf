"""Whether the scheduler half tells its workers of the loads that it has promised.

Metadata is the target's own, whatever it is made of: what can be seen is whether it speaks of a
request, and of which of its blocks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


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


class Plans:
    """The loads of one engine that were promised and that its workers have not been told of."""

    def __init__(self) -> None:
        self._untold: dict[str, set[int]] = {}  # by request: blocks
        self._said = Said()

    def promised(self, request: str, blocks: Sequence[int]) -> None:
        """A load into these blocks was promised."""
        self._untold[request] = set(blocks)

    def look(self, metadata: Any, known: Collection[str]) -> Iterator[tuple[str, set[int]]]:
        """Of which promised loads, and which of their blocks, a step's metadata speaks.

        ``known``: requests that the scheduler has not forgotten.
        """
        if not self._untold:
            return
        self._said = said(metadata)
        for request, blocks in list(self._untold.items()):
            # A list of some of its blocks, or, where there is none, any of their numbers: lists of
            # another engine's blocks are about as well.
            own = [numbers for numbers in self._said.lists if blocks.issuperset(numbers)]
            told = set().union(*own) if own else blocks & self._said.numbers
            if self._said.opaque:
                told = set(blocks)  # who knows
            if request in self._said.names or told:
                yield request, told
            blocks -= told
            if not blocks or request not in known:
                del self._untold[request]

    def holds(self, *lists: Sequence[int]) -> bool:
        """Whether the metadata that was looked at last has all these lists, as they are."""
        return all(tuple(numbers) in self._said.lists for numbers in lists)
