"""Which leading tokens of a prompt earlier requests had."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvconform.scenario.identity import Identity

_Node = dict[int, Any]  # token: node


class Prefixes:
    """Earlier requests as a trie per identity.

    A question costs a prompt's length, however many prompts came.
    """

    def __init__(self) -> None:
        self._roots: dict[Identity, _Node] = {}

    def shared(self, tokens: Sequence[int], identity: Identity) -> tuple[int, int]:
        """Leading tokens that a request of this identity has, and that one of another has."""
        known = foreign = 0
        for other, node in self._roots.items():
            count = 0
            for token in tokens:
                found = node.get(token)
                if found is None:
                    break
                node = found
                count += 1
            if other == identity:
                known = count
            else:
                foreign = max(foreign, count)
        return known, foreign

    def add(self, tokens: Sequence[int], identity: Identity) -> None:
        """A request came: its prompt, and what it will answer."""
        node = self._roots.setdefault(identity, {})
        for token in tokens:
            node = node.setdefault(token, {})
