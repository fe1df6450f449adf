"""Which leading tokens of a prompt earlier requests had."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from kvconform.scenario.identity import Identity, Part


class Prefixes:
    """Earlier requests, as the set of all their prefixes per identity.

    A question costs a prompt's length, however many requests came. A prefix is kept as 64 mixed
    bits: plain numbers cost the collector of garbage nothing, however many there are.
    """

    def __init__(self) -> None:
        self._known: dict[Identity, set[int]] = {}

    def shared(self, tokens: Sequence[int], identity: Identity) -> tuple[int, Mapping[Part, int]]:
        """Leading tokens that a request with the same KV has, and that others have.

        Returns:
            How many are known with the same KV; and where more tokens are, and their KV is not the
            same, how many, by what makes the KV another.
        """
        known, foreign = 0, dict[Part, int]()
        for other, prefixes in self._known.items():
            count = 0
            for prefix in _prefixes(tokens):
                if prefix not in prefixes:
                    break
                count += 1
            same = identity.agrees(other)
            known = max(known, min(count, same))
            part = identity.differs(other)
            if part is not None and count > same:
                foreign[part] = max(count, foreign.get(part, 0))
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
