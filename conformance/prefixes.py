"""Which leading tokens of a prompt earlier requests had."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kvconform.scenario.identity import Identity


class Prefixes:
    """Earlier requests, as the set of all their prefixes per identity.

    A question costs a prompt's length, however many requests came. A prefix is kept as 64 mixed
    bits: plain numbers cost the collector of garbage nothing, however many there are.
    """

    def __init__(self) -> None:
        self._known: dict[Identity, set[int]] = {}

    def shared(self, tokens: Sequence[int], identity: Identity) -> tuple[int, int]:
        """Leading tokens that a request of this identity has, and that one of another has."""
        known = foreign = 0
        for other, prefixes in self._known.items():
            count = 0
            for prefix in _prefixes(tokens):
                if prefix not in prefixes:
                    break
                count += 1
            if other == identity:
                known = count
            else:
                foreign = max(foreign, count)
        return known, foreign

    def add(self, tokens: Sequence[int], identity: Identity) -> None:
        """A request came: its prompt, and what it will answer."""
        self._known.setdefault(identity, set()).update(_prefixes(tokens))


def _prefixes(tokens: Sequence[int]) -> Iterator[int]:
    """One number for each prefix, shortest first; the same in every process."""
    mixed = 0
    for token in tokens:
        mixed = hash((mixed, token))
        yield mixed
