"""What a store that keeps all must have, as far as that can be said."""

from __future__ import annotations

from kvconform.conformance.facts import Facts
from kvconform.conformance.prefixes import Prefixes
from kvconform.scenario.shape import Shape

SPOILS = ("full", "fail-save", "fail-load", "lost", "forget")
"""Fault packages after which nothing is said any more."""


class Kept:
    """Prompts and outputs of requests that have ended by themselves.

    Where prefill and decode are apart nothing is said of the store; neither where a window lets
    blocks go before they can be saved.

    Args:
        shape: the run's.
    """

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._prefixes = Prefixes()
        self._left: list[Facts] = []
        self._taken = 0  # blocks, at most; those that were forgotten may take room still

    def takes(self, blocks: int) -> None:
        """So many blocks may be saved."""
        self._taken += blocks

    def left(self, facts: Facts) -> None:
        """A request has gone that ended by itself; what it has left may be incomplete yet."""
        self._left.append(facts)

    def forget(self) -> None:
        """The store has been emptied."""
        self._prefixes = Prefixes()
        self._left.clear()

    def tokens(self, facts: Facts, saving: bool) -> int:
        """Leading tokens of a prompt that the store must have, in full blocks; 0: cannot be said.

        ``saving``: something is being saved, so that what was left last may not be there.
        """
        size = self._shape.block_size
        for left in () if saving else self._left:
            computed = len(left.tokens) + len(left.delivered) - 1
            blocks = min(left.left_blocks, computed // size)
            self._prefixes.add(left.whole[: blocks * size], left.identity)
        if not saving:
            self._left.clear()
        if (
            self._shape.topology != "store"
            or self._shape.window
            or self._taken > self._shape.store_blocks
        ):
            return 0
        return self._prefixes.shared(facts.tokens, facts.identity)[0] // size * size
