"""Who holds what in a store of another process, and until when."""

from __future__ import annotations

import pytest

from kvconform.connectors.ascend.leases import Leases
from kvconform.connectors.ascend.store import HostStore

KEYS = (b"a", b"b")


@pytest.fixture
def store() -> HostStore:
    store = HostStore(8, 1)
    store.reserve("save", KEYS)
    for key in KEYS:
        store.write("save", key, 0, ())
    store.commit("save")
    return store


def test_a_silent_client_loses_what_it_holds(store: HostStore) -> None:
    leases = Leases(store, 10.0)
    for client, holder, now in (("one", "pins", 0.0), ("two", "more", 5.0)):
        leases.hear(client, now)
        leases.take(client, holder)
        store.pin(holder, KEYS)
    assert leases.expire(10.0) == []
    assert leases.expire(10.1) == ["one"]
    assert store.holders == {"more"}
    leases.hear("two", 15.0)
    assert leases.expire(16.0) == []
    assert leases.expire(26.0) == ["two"]
    assert leases.expire(99.0) == []
    assert store.holders == frozenset()


def test_only_what_the_client_names_is_kept(store: HostStore) -> None:
    leases = Leases(store, 10.0)
    leases.take("one", "pins")
    store.pin("pins", KEYS)
    leases.take("one", "lost")
    store.reserve("lost", [b"c"])
    leases.take("two", "other")
    store.pin("other", KEYS)
    leases.keep("one", ["pins", "never heard of"])
    assert store.holders == {"pins", "other"}
    leases.end("one")
    assert store.holders == {"other"}


def test_a_name_that_comes_back_starts_anew(store: HostStore) -> None:
    leases = Leases(store, 10.0)
    for client in ("old", "new"):
        leases.take(client, "job")
        store.reserve("job", [client.encode()])
    assert store.used_blocks == 3
    leases.end("old")
    assert store.holders == {"job"}
