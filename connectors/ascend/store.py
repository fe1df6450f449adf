"""The host memory that KV lives in between requests.

A key names one KV block; its entry holds one shard of host tensors for each rank. An entry is

* *reserved* by the holder that saves it: room is taken, nobody finds it;
* *committed* when every rank has saved its shard: lookups find it, eviction may take it;
* *pinned* while a load that was promised it is open: eviction passes it by, so that what was
  promised is delivered.

Holders are job ids. A reader gets the entry that it pinned and a writer fills the entry that it
reserved, never what happens to have that key by then: ``clear`` may have come in between.
"""

from __future__ import annotations

import threading
import zlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol, TypeAlias
from weakref import WeakSet, WeakValueDictionary

import torch

Shard: TypeAlias = torch.Tensor
"""One KV block of one rank, all layers: its bytes, in host memory. Tensors of ``uint8``."""


class Watcher(Protocol):
    """Hears what becomes of keys, with the store's lock held, so in the order of events."""

    def stored(self, holder: str, keys: Sequence[bytes]) -> None:
        """The holder committed these keys."""

    def removed(self, key: bytes) -> None:
        """The key is committed no longer."""


@dataclass(eq=False)
class _Entry:
    shards: dict[int, Shard] = field(default_factory=dict)
    sums: dict[int, int] = field(default_factory=dict)  # of shards, where they are verified
    pins: int = 0
    doomed: bool = False  # cleared while it was being saved: it never becomes visible


class HostStore:
    """A directory of KV blocks with a fixed capacity.

    Thread-safe: every method takes the store's lock and holds it only to look things up, never
    while bytes are copied. Shards are written once and then only read, so a reader may use what
    ``read`` gave it without the lock, even if the entry is evicted meanwhile.

    Args:
        capacity_blocks: entries that fit, counting all that take memory: committed ones, reserved
            ones, and cleared ones that are still pinned or being saved.
        world_size: shards that make an entry complete.
        verify: whether a shard is compared with what was written before it is read. One that has
            changed is lost, and so is its entry.
    """

    _named: ClassVar[WeakValueDictionary[str, HostStore]] = WeakValueDictionary()
    _named_lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, capacity_blocks: int, world_size: int, verify: bool = False) -> None:
        self.capacity_blocks = capacity_blocks
        self.world_size = world_size
        self.verify = verify
        self._lock = threading.Lock()
        self._committed: OrderedDict[bytes, _Entry] = OrderedDict()  # least recently used first
        self._reserved: dict[bytes, _Entry] = {}
        self._pinned_by: dict[str, dict[bytes, _Entry]] = {}
        self._reserved_by: dict[str, dict[bytes, _Entry]] = {}
        self._cleared: set[_Entry] = set()  # no longer committed, still pinned
        self._watchers: WeakSet[Watcher] = WeakSet()

    @classmethod
    def named(
        cls, name: str, capacity_blocks: int, world_size: int, verify: bool = False
    ) -> HostStore:
        """The store that everyone in this process shares under ``name``; it goes with its users.

        Raises:
            ValueError: it exists with another capacity or world size.
        """
        with cls._named_lock:
            store = cls._named.get(name)
            if store is None:
                store = cls._named[name] = cls(capacity_blocks, world_size, verify)
        if (store.capacity_blocks, store.world_size) != (capacity_blocks, world_size):
            raise ValueError(
                f"The store {name!r} holds {store.capacity_blocks} blocks of {store.world_size} "
                f"ranks; asked for {capacity_blocks} blocks of {world_size} ranks"
            )
        return store

    def watch(self, watcher: Watcher) -> None:
        """Tell ``watcher`` from now on, for as long as somebody else knows it."""
        with self._lock:
            self._watchers.add(watcher)

    # -- questions --------------------------------------------------------------------------------

    def lookup(self, keys: Sequence[bytes]) -> int:
        """How many leading keys are committed. Changes nothing, not even the eviction order."""
        with self._lock:
            return self._leading(keys)

    @property
    def used_blocks(self) -> int:
        """Entries that take memory."""
        with self._lock:
            return self._used()

    @property
    def holders(self) -> frozenset[str]:
        """Holders of pins or reservations."""
        with self._lock:
            return frozenset(self._pinned_by) | frozenset(self._reserved_by)

    # -- loading ----------------------------------------------------------------------------------

    def pin(self, holder: str, keys: Sequence[bytes]) -> int:
        """Keep the leading committed keys for ``holder``; how many they are.

        A holder pins a key once, however often it asks; pins of several holders add up.
        """
        with self._lock:
            count = self._leading(keys)
            if count:
                held = self._pinned_by.setdefault(holder, {})
                for key in keys[:count]:
                    if key not in held:
                        held[key] = self._committed[key]
                        held[key].pins += 1
                self._touch(keys[:count])
            return count

    def unpin(self, holder: str) -> None:
        """Give back all pins of ``holder`` (none is fine)."""
        with self._lock:
            for entry in self._pinned_by.pop(holder, {}).values():
                entry.pins -= 1
                if not entry.pins:
                    self._cleared.discard(entry)

    def read(self, holder: str, key: bytes, rank: int) -> Shard | None:
        """A rank's shard of what ``holder`` pinned under ``key``; None if it pinned no such thing.

        It is the store's own: read only. None too if it has changed all the same.
        """
        with self._lock:
            entry = self._pinned_by.get(holder, {}).get(key)
            shard = entry.shards.get(rank) if entry is not None else None
        if entry is None or shard is None or not self.verify or entry.sums[rank] == _sum(shard):
            return shard
        with self._lock:
            if self._committed.get(key) is entry:  # nobody finds it any more
                self._remove(key)
                self._cleared.add(entry)
        return None

    # -- saving -----------------------------------------------------------------------------------

    def reserve(self, holder: str, keys: Sequence[bytes]) -> list[int]:
        """Room for what is missing; the indices of the keys that ``holder`` shall save.

        Keys that are committed, or reserved by anyone, are left out. Room is made by evicting the
        least recently used entries that nobody has pinned; where none is left the rest of the keys
        is not granted. Leading keys come first, for a chain of keys is only found from its start.
        """
        with self._lock:
            self._touch([key for key in keys if key in self._committed])
            chain = frozenset(keys)
            granted = []
            for index, key in enumerate(keys):
                if key in self._committed or key in self._reserved:
                    continue
                if not self._make_room(chain):
                    break
                entry = self._reserved[key] = _Entry()
                self._reserved_by.setdefault(holder, {})[key] = entry
                granted.append(index)
            return granted

    def write(self, holder: str, key: bytes, rank: int, shard: Shard) -> bool:
        """Store a rank's shard of what ``holder`` reserved; False if it holds no such reservation.

        The store takes ``shard`` over: the caller does not write to it any more.
        """
        checksum = _sum(shard) if self.verify else 0
        with self._lock:
            entry = self._reserved_by.get(holder, {}).get(key)
            if entry is None:
                return False
            entry.shards[rank], entry.sums[rank] = shard, checksum
            return True

    def commit(self, holder: str) -> None:
        """Everything that ``holder`` reserved is saved: let it be found.

        Entries that lack a shard, or that were cleared meanwhile, are given up instead.
        """
        with self._lock:
            whole = [
                (key, entry)
                for key, entry in self._release(holder).items()
                if not entry.doomed and len(entry.shards) == self.world_size
            ]
            # The head of a chain goes in last: it is evicted last.
            self._committed.update(reversed(whole))
            for watcher in self._watchers:
                watcher.stored(holder, [key for key, _ in whole])

    def abandon(self, holder: str) -> None:
        """Give up everything that ``holder`` reserved (nothing is fine)."""
        with self._lock:
            self._release(holder)

    def evict(self, keys: Sequence[bytes]) -> None:
        """Forget what nobody has pinned of these, as a store does that others fill as well."""
        with self._lock:
            for key in keys:
                entry = self._committed.get(key)
                if entry is not None and not entry.pins:
                    self._remove(key)

    def clear(self) -> None:
        """Forget everything: nothing saved, or being saved, before now is ever found again.

        What is pinned stays readable for those who pinned it.
        """
        with self._lock:
            self._cleared.update(e for e in self._committed.values() if e.pins)
            for key in list(self._committed):
                self._remove(key)
            for entry in self._reserved.values():
                entry.doomed = True
            self._reserved.clear()  # the keys may be reserved anew at once

    # -- with the lock held -----------------------------------------------------------------------

    def _leading(self, keys: Sequence[bytes]) -> int:
        for count, key in enumerate(keys):
            if key not in self._committed:
                return count
        return len(keys)

    def _touch(self, keys: Sequence[bytes]) -> None:
        """Mark committed keys as used, the head of the chain last: it is evicted last."""
        for key in reversed(keys):
            self._committed.move_to_end(key)

    def _used(self) -> int:
        saving = sum(len(entries) for entries in self._reserved_by.values())
        return len(self._committed) + saving + len(self._cleared)

    def _make_room(self, chain: frozenset[bytes]) -> bool:
        """Room for one entry; never at the cost of ``chain``, which the entry belongs to."""
        if self._used() < self.capacity_blocks:
            return True
        for key, entry in self._committed.items():
            if not entry.pins and key not in chain:
                self._remove(key)
                return True
        return False

    def _remove(self, key: bytes) -> None:
        del self._committed[key]
        for watcher in self._watchers:
            watcher.removed(key)

    def _release(self, holder: str) -> dict[bytes, _Entry]:
        entries = self._reserved_by.pop(holder, {})
        for key, entry in entries.items():
            if not entry.doomed:
                del self._reserved[key]
        return entries


def _sum(shard: Shard) -> int:
    """CRC-32 of a shard."""
    return zlib.crc32(shard.numpy())
