"""What a store that keeps all must have, as far as that can be said."""

from __future__ import annotations

from kvconform.conformance.facts import Facts
from kvconform.conformance.prefixes import Prefixes
from kvconform.scenario.identity import Identity
from kvconform.scenario.shape import Shape

SPOILS = ("full", "fail-save", "fail-load", "lost", "forget", "corrupt", "fail-copy")
"""Fault packages after which nothing is said any more."""


class Kept:
    """Prompts and outputs of requests that have ended by themselves.

    Where prefill and decode are apart nothing is said of the store. Where a KV group has a window,
    what it has let go cannot be saved at the end: a prompt is found that goes on behind all that
    a request has left, if that had the whole window at its end.

    Args:
        shape: the run's.

    Attributes:
        shape: that of the engines as they are now.
    """

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self._prefixes = Prefixes()
        self._whole: list[tuple[tuple[int, ...], Identity]] = []
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
        self._whole.clear()
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
        if self.shape.window:
            longest = (len(facts.tokens) - 1) // size * size
            found = (
                len(tokens) for tokens, identity in self._whole
                if len(tokens) <= longest and identity == facts.identity
                and facts.tokens[: len(tokens)] == tokens
            )  # fmt: skip
            return max(found, default=0)
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
        for left in self._left:
            self._add(left)
        self._left.clear()

    def _add(self, left: Facts) -> None:
        size = self.shape.block_size
        computed = len(left.tokens) + len(left.delivered) - 1
        blocks = min(len(left.left[0]) if left.left else 0, computed // size)
        tokens = left.whole[: blocks * size]
        if not self.shape.window:
            self._prefixes.add(tokens, left.identity)
        elif self._has_window(left, blocks):
            self._whole.append((tokens, left.identity))

    def _has_window(self, left: Facts, blocks: int) -> bool:
        """Whether it had, behind so many full blocks, what the window sees from there."""
        first = max(0, blocks * self.shape.block_size - self.shape.window + 1)
        seen = left.left[1][first // self.shape.block_size : blocks]
        return bool(blocks) and 0 not in seen
