"""What a prefill rank lets a decode rank read: blocks, for as long as a lease runs.

An offer ends when its reader has read it, when the reader says that it needs nothing, or when its
lease is over. Reading and ending exclude each other, so a block is never read after its offer
ended: whoever comes too late gets nothing, and has to say so.

A reader may come early: its request travels by another way than the job that tells this rank of the
offer. The blocks are kept since before either, so it is served. Offers are numbered, and told in
order: what is not open is to come if its number is higher than any told so far, else it has ended.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import ClassVar
from weakref import WeakValueDictionary

from kvconform.connectors.ascend.device import Device, Mark
from kvconform.connectors.ascend.store import Shard


class Offers:
    """The offers of one rank. Thread-safe.

    Readers in the same process find it with :meth:`of`; it goes with its rank's connector. Others
    ask for it, see ``peers``.

    Args:
        engine_id: the engine that offers.
        rank: its rank.
        device: the KV memory that is read.
    """

    _ranks: ClassVar[WeakValueDictionary[tuple[str, int], Offers]] = WeakValueDictionary()

    def __init__(self, engine_id: str, rank: int, device: Device) -> None:
        self._device = device
        self._lock = threading.Lock()
        self._deadlines: dict[str, float] = {}  # of open offers, on the monotonic clock
        self._marks: dict[str, Mark | None] = {}  # of open offers: when their blocks are there
        self._early: set[str] = set()  # closed before they were told
        self._told = -1  # highest number
        self._ended: list[str] = []
        self._ranks[engine_id, rank] = self

    @property
    def layout(self) -> str:
        """See ``Device.layout``."""
        return self._device.layout

    @classmethod
    def of(cls, engine_id: str, rank: int) -> Offers | None:
        """The offers of an engine's rank, if it lives in this process."""
        return cls._ranks.get((engine_id, rank))

    def put(self, offer_id: str, seconds: float, after: Mark | None = None) -> None:
        """An offer is open, for ``seconds`` at most; its blocks are there ``after`` that mark."""
        with self._lock:
            self._told = max(self._told, _number(offer_id))
            if offer_id in self._early:
                self._early.remove(offer_id)
                self._ended.append(offer_id)
            else:
                self._deadlines[offer_id] = time.monotonic() + seconds
                self._marks[offer_id] = after

    def read(self, offer_id: str, block_ids: Sequence[int]) -> list[Shard] | None:
        """Read blocks of an offer; None when it has ended."""
        with self._lock:
            self._expire()
            if not self._is_open(offer_id):
                return None
            return self._device.read(block_ids, self._marks.get(offer_id))

    def close(self, offer_id: str) -> None:
        """Its reader needs it no longer; an offer that has ended stays so."""
        with self._lock:
            if offer_id in self._deadlines:
                self._end(offer_id)
            elif self._is_open(offer_id):
                self._early.add(offer_id)

    def ended(self) -> list[str]:
        """Offers that ended since this was last asked, each once."""
        with self._lock:
            self._expire()
            ended, self._ended = self._ended, []
            return ended

    def _is_open(self, offer_id: str) -> bool:
        if offer_id in self._deadlines:
            return True
        return _number(offer_id) > self._told and offer_id not in self._early

    def _expire(self) -> None:
        now = time.monotonic()
        for offer_id in [o for o, deadline in self._deadlines.items() if deadline <= now]:
            self._end(offer_id)

    def _end(self, offer_id: str) -> None:
        del self._deadlines[offer_id], self._marks[offer_id]
        self._ended.append(offer_id)


def _number(offer_id: str) -> int:
    """The number of an offer, from its id; -1: no offer has such an id."""
    digits = offer_id.rpartition("-")[2]
    return int(digits) if digits.isdecimal() and len(digits) < 20 else -1
