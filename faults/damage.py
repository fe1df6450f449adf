"""Bytes that do not get across, and bytes that change where they lie.

What is damaged is marked, so that whoever reads it is known to have.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any

import numpy as np

from kvconform.engine.oracle import ROTTEN, TORN


class TearingDevice:
    """A rank's KV memory behind a wire that breaks: of some blocks half of the bytes get across.

    Args:
        inner: the memory.
        torn: device blocks of which the second half stays what it was.
    """

    def __init__(self, inner: Any, torn: Container[int]) -> None:
        self._inner = inner
        self._torn = torn

    def read(self, block_ids: Sequence[int], *after: Any) -> Any:
        """The KV of these blocks; what did not get across is marked, so that it is recognised."""
        shards = self._inner.read(block_ids, *after)
        for block, shard in zip(block_ids, shards, strict=True):
            if block in self._torn:
                words = _words(shard)
                words[len(words) // 2 :] = TORN
        return shards

    def write(self, block_ids: Sequence[int], shards: Sequence[Any], *after: Any) -> None:
        """Overwrite the KV of these blocks, or of their first halves."""
        before = self._inner.read(block_ids, *after)
        halves = []
        for block, shard, old in zip(block_ids, shards, before, strict=True):
            if block in self._torn:
                half = len(_words(old)) // 2
                _words(old)[:half] = _words(shard)[:half]
            halves.append(old if block in self._torn else shard)
        self._inner.write(block_ids, halves, *after)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def rot(shard: Any) -> None:
    """The memory that a shard lies in fails."""
    _words(shard)[:] = ROTTEN


def _words(shard: Any) -> Any:
    """The 64-bit words of a shard, in place."""
    return shard.numpy().view(np.uint64)
