"""What a store that keeps all must have, as far as that can be said."""

from __future__ import annotations

from kvconform.conformance.facts import Facts
from kvconform.conformance.prefixes import Prefixes
from kvconform.scenario.shape import Shape

SPOILS = ("full", "fail-save", "fail-load", "lost", "forget", "corrupt")
"""Fault packages after which nothing is said any more."""


class Kept:
    """Prompts and outputs of requests that have ended by themselves.

    Where prefill and decode are apart nothing is said of the store.

    Args:
        shape: the run's.

    Attributes:
        shape: that of the engines as they are now.
    """

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self._prefixes = Prefixes()
        self._left: list[Facts] = []
        self._spoiled = False
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
        if not saving:
            self._count()
        if self._spoiled or self.shape.topology != "store" or self._taken > self.shape.store_blocks:
            return 0
        size = self.shape.block_size
        return self._prefixes.shared(facts.tokens, facts.identity)[0] // size * size

    def died(self, saving: bool, remembers: bool, orphans: bool) -> None:
        """An engine has died: what was being saved is not to be found.

        Args:
            saving: something was.
            remembers: what had been saved before outlives it.
            orphans: something is reserved for it, so that others cannot save it.
        """
        if not saving:
            self._count()
        self._left.clear()
        self._spoiled |= orphans
        if not remembers:
            self.forget()

    def _count(self) -> None:
        """All that was left is there."""
        size = self.shape.block_size
        for left in self._left:
            computed = len(left.tokens) + len(left.delivered) - 1
            blocks = min(left.left_blocks, computed // size)
            self._prefixes.add(left.whole[: blocks * size], left.identity)
        self._left.clear()
