"""The host store: capacity, eviction, pins, reservations, clearing, sharing."""

from __future__ import annotations

import gc
from collections.abc import Sequence

import pytest
import torch

from kvconform.connectors.ascend.store import HostStore, Shard


def keys(text: str) -> list[bytes]:
    """A chain of keys, one for each character."""
    return [c.encode() for c in text]


def shard(value: float) -> Shard:
    return torch.full((2,), float(value)).view(torch.uint8)


def save(store: HostStore, chain: Sequence[bytes], holder: str = "save", value: float = 1) -> int:
    """Save a chain on every rank; how many of its keys were granted."""
    granted = store.reserve(holder, chain)
    for index in granted:
        for rank in range(store.world_size):
            assert store.write(holder, chain[index], rank, shard(value + rank))
    store.commit(holder)
    return len(granted)


def read(store: HostStore, holder: str, key: bytes, rank: int = 0) -> float | None:
    found = store.read(holder, key, rank)
    return float(found.view(torch.float32)[0]) if found is not None else None


@pytest.fixture
def store() -> HostStore:
    return HostStore(capacity_blocks=4, world_size=1)


class TestLookup:
    def test_counts_leading_keys(self, store: HostStore) -> None:
        save(store, keys("abd"))
        assert store.lookup(keys("abcd")) == 2
        assert store.lookup(keys("xab")) == 0
        assert store.lookup([]) == 0

    def test_does_not_keep_from_eviction(self, store: HostStore) -> None:
        save(store, keys("ab"), "1")
        save(store, keys("cd"), "2")
        store.lookup(keys("ab"))
        save(store, keys("e"), "3")
        assert store.lookup(keys("ab")) == 1
        assert store.lookup(keys("cd")) == 2


class TestSaving:
    def test_is_seen_when_committed(self, store: HostStore) -> None:
        assert store.reserve("save", keys("ab")) == [0, 1]
        store.write("save", b"a", 0, shard(1))
        store.write("save", b"b", 0, shard(1))
        assert store.lookup(keys("ab")) == 0
        store.commit("save")
        assert store.lookup(keys("ab")) == 2

    def test_needs_every_rank(self) -> None:
        store = HostStore(4, world_size=2)
        store.reserve("save", keys("ab"))
        for key, rank in ((b"a", 0), (b"a", 1), (b"b", 1)):
            store.write("save", key, rank, shard(1))
        store.commit("save")
        assert store.lookup(keys("ab")) == 1
        assert store.used_blocks == 1

    def test_grants_only_what_is_missing(self, store: HostStore) -> None:
        save(store, keys("a"))
        assert store.reserve("one", keys("ab")) == [1]
        assert store.reserve("two", keys("abc")) == [2]
        assert store.reserve("one", keys("abc")) == []

    def test_abandoned_is_never_seen_and_may_be_saved_by_another(self, store: HostStore) -> None:
        store.reserve("one", keys("a"))
        store.write("one", b"a", 0, shard(1))
        store.abandon("one")
        assert not store.write("one", b"a", 0, shard(1))
        assert (store.lookup(keys("a")), store.used_blocks) == (0, 0)
        assert store.reserve("two", keys("a")) == [0]

    def test_only_the_holder_writes_and_only_until_it_commits(self, store: HostStore) -> None:
        store.reserve("one", keys("a"))
        assert not store.write("two", b"a", 0, shard(2))
        assert store.write("one", b"a", 0, shard(1))
        store.commit("one")
        assert not store.write("one", b"a", 0, shard(3))
        store.pin("load", keys("a"))
        assert read(store, "load", b"a") == 1


class TestEviction:
    def test_takes_the_least_recently_used_and_the_tail_first(self, store: HostStore) -> None:
        save(store, keys("abcd"))
        save(store, keys("e"), "2")
        assert store.lookup(keys("abcd")) == 3
        assert store.used_blocks == 4

    def test_takes_the_tail_first_after_a_use_too(self, store: HostStore) -> None:
        save(store, keys("abcd"))
        store.pin("load", keys("abcd"))
        store.unpin("load")
        save(store, keys("e"), "2")
        assert store.lookup(keys("abcd")) == 3

    def test_pinning_and_saving_again_are_uses(self, store: HostStore) -> None:
        save(store, keys("ab"), "1")
        save(store, keys("cd"), "2")
        store.pin("load", keys("a"))
        store.unpin("load")
        assert save(store, keys("b"), "3") == 0
        save(store, keys("ef"), "4")
        assert store.lookup(keys("ab")) == 2
        assert store.lookup(keys("cd")) == 0

    def test_passes_pinned_entries_by(self, store: HostStore) -> None:
        save(store, keys("abcd"))
        assert store.pin("load", keys("abc")) == 3
        assert store.reserve("save", keys("xyz")) == [0]  # d made room
        assert store.lookup(keys("abc")) == 3
        store.unpin("load")
        assert store.reserve("more", keys("yz")) == [0, 1]

    def test_passes_reserved_entries_by(self, store: HostStore) -> None:
        store.reserve("one", keys("abcd"))
        assert store.reserve("two", keys("x")) == []
        assert store.used_blocks == 4

    def test_does_not_eat_the_chain_that_it_serves(self, store: HostStore) -> None:
        assert save(store, keys("abcdef")) == 4
        assert store.lookup(keys("abcdef")) == 4
        assert save(store, keys("abcdef"), "2") == 0
        assert store.lookup(keys("abcdef")) == 4


class TestPins:
    def test_are_counted_per_holder(self, store: HostStore) -> None:
        save(store, keys("abcd"))
        for holder in ("one", "two"):
            for _ in range(2):  # a holder pins once, however often it asks
                assert store.pin(holder, keys("abcd")) == 4
        store.unpin("one")
        store.unpin("one")
        assert store.reserve("save", keys("x")) == []
        assert store.holders == {"two"}
        store.unpin("two")
        assert store.reserve("save", keys("x")) == [0]
        assert store.holders == {"save"}

    def test_cover_the_leading_keys_that_are_there(self, store: HostStore) -> None:
        save(store, keys("ab"))
        assert store.pin("load", keys("abc")) == 2
        assert store.pin("nothing", keys("xab")) == 0
        assert store.holders == {"load"}

    def test_reading_needs_one(self, store: HostStore) -> None:
        save(store, keys("ab"), value=7)
        assert read(store, "load", b"a") is None
        store.pin("load", keys("a"))
        assert read(store, "load", b"a") == 7
        assert read(store, "load", b"b") is None
        assert read(store, "load", b"a", rank=1) is None


class TestClear:
    def test_forgets_what_is_committed(self, store: HostStore) -> None:
        save(store, keys("ab"))
        store.clear()
        assert (store.lookup(keys("ab")), store.used_blocks) == (0, 0)

    def test_leaves_pinned_entries_readable_until_unpinned(self, store: HostStore) -> None:
        save(store, keys("ab"), value=7)
        store.pin("load", keys("ab"))
        store.clear()
        assert store.lookup(keys("ab")) == 0
        assert store.pin("late", keys("ab")) == 0
        assert read(store, "load", b"a") == 7
        assert store.used_blocks == 2  # they take room still
        store.unpin("load")
        assert store.used_blocks == 0

    def test_a_pinned_entry_does_not_become_its_successor(self, store: HostStore) -> None:
        save(store, keys("a"), value=7)
        store.pin("old", keys("a"))
        store.clear()
        save(store, keys("a"), "2", value=8)
        store.pin("new", keys("a"))
        assert (read(store, "old", b"a"), read(store, "new", b"a")) == (7, 8)
        store.unpin("old")
        assert store.lookup(keys("a")) == 1
        assert store.used_blocks == 1

    def test_dooms_what_is_being_saved(self, store: HostStore) -> None:
        store.reserve("old", keys("ab"))
        store.write("old", b"a", 0, shard(7))
        store.clear()
        assert store.reserve("new", keys("a")) == [0]
        assert store.write("old", b"b", 0, shard(7))  # it may go on, to no avail
        store.write("new", b"a", 0, shard(8))
        store.commit("old")
        assert store.lookup(keys("ab")) == 0
        store.commit("new")
        assert store.lookup(keys("ab")) == 1
        store.pin("load", keys("a"))
        assert read(store, "load", b"a") == 8
        assert store.used_blocks == 1


class TestNamed:
    def test_users_of_one_name_share(self) -> None:
        one = HostStore.named("shared", 4, 1)
        assert HostStore.named("shared", 4, 1) is one
        assert HostStore.named("other", 4, 1) is not one

    def test_it_goes_with_its_users(self) -> None:
        one = HostStore.named("mortal", 4, 1)
        save(one, keys("a"))
        del one
        gc.collect()
        assert HostStore.named("mortal", 8, 2).lookup(keys("a")) == 0

    def test_users_agree_on_what_it_is(self) -> None:
        one = HostStore.named("agreed", 4, 1)
        for capacity, ranks in ((5, 1), (4, 2)):
            with pytest.raises(ValueError, match="'agreed' holds 4 blocks of 1 ranks"):
                HostStore.named("agreed", capacity, ranks)
        assert one.capacity_blocks == 4


class TestVerify:
    def test_what_has_changed_is_lost(self) -> None:
        store = HostStore(4, 2, verify=True)
        save(store, keys("ab"))
        store.pin("load", keys("ab"))
        changed = store.read("load", b"b", 1)
        assert changed is not None
        changed[0] += 1
        assert store.read("load", b"b", 1) is None
        assert read(store, "load", b"b", 0) == 1
        assert store.lookup(keys("ab")) == 1
        store.unpin("load")
        assert store.used_blocks == 1
