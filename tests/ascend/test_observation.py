"""What the connector counts, and what it announces of its store."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from vllm.distributed.kv_events import BlockRemoved, BlockStored
from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash

from kvconform.connectors.ascend.announcements import Announcer
from kvconform.connectors.ascend.carrier import ReportAsStats
from kvconform.connectors.ascend.metadata import Closing, WorkerReport
from kvconform.connectors.ascend.statistics import Tally, TransferStats
from kvconform.connectors.ascend.store import HostStore

SIZE = 4
SHARD = (torch.zeros(1),)


class Request:
    """A request of three full blocks, as far as an announcement looks at it."""

    block_hashes = (b"a" * 32, b"b" * 32, b"c" * 32)
    all_token_ids = tuple(range(3 * SIZE + 1))
    lora_request = None


def saved(store: HostStore, job: str, *keys: bytes) -> None:
    store.reserve(job, keys)
    for key in keys:
        store.write(job, key, 0, SHARD)
    store.commit(job)


@pytest.fixture
def store() -> HostStore:
    return HostStore(3, 1)


@pytest.fixture
def announcer(store: HostStore) -> Announcer:
    announcer = Announcer(SIZE)
    store.watch(announcer)
    return announcer


def places(count: int) -> dict[bytes, int]:
    """The first blocks of a request, under the keys that they have in the store."""
    return {key: index for index, key in enumerate(Request.block_hashes[:count])}


def named(event: Any) -> tuple[type, list[Any]]:
    return type(event), event.block_hashes


def name(key: bytes) -> Any:
    return maybe_convert_block_hash(key)


def test_a_tally_is_taken_once() -> None:
    tally = Tally()
    tally.add(load_blocks=2, load_failed_blocks=0)
    tally.add(load_blocks=1)
    taken = tally.take(TransferStats)
    assert taken is not None
    assert taken.reduce() == {"load_blocks": 3}
    assert tally.take(TransferStats) is None


def test_statistics_add_up_into_new_ones() -> None:
    one, two = TransferStats({"a": 1}), TransferStats({"a": 2, "b": 3})
    assert one.aggregate(two).data == {"a": 3, "b": 3}
    assert (one.data, two.data) == ({"a": 1}, {"a": 2, "b": 3})
    assert TransferStats().is_empty()


def test_a_report_travels_with_the_numbers() -> None:
    report = WorkerReport({"j": Closing(1, False)})
    both = ReportAsStats({"a": 1}, report).aggregate(ReportAsStats({"a": 1}, report))
    assert both.data == {"a": 2}
    assert both.report == WorkerReport({"j": Closing(2, False)})
    assert ReportAsStats({"a": 1}, report).aggregate(ReportAsStats({})).report == report
    assert not ReportAsStats({}, report).is_empty()


def test_blocks_are_announced_when_they_are_there(store: HostStore, announcer: Announcer) -> None:
    request: Any = Request()
    announcer.expect("j", request, places(3))
    keys = [bytes(h) for h in request.block_hashes]
    store.reserve("j", keys)
    assert announcer.take() == []
    saved(store, "j", *keys)
    events: list[Any] = announcer.take()
    # The head of the chain first, for a subscriber needs to know the parent.
    assert [named(e) for e in events] == [(BlockStored, [name(k)]) for k in keys]
    assert [e.parent_block_hash for e in events] == [None, *(name(k) for k in keys[:2])]
    assert [t for e in events for t in e.token_ids] == list(request.all_token_ids[:-1])
    assert announcer.take() == []


def test_what_is_evicted_is_announced(store: HostStore, announcer: Announcer) -> None:
    request: Any = Request()
    announcer.expect("j", request, places(2))
    saved(store, "j", *request.block_hashes[:2])
    announcer.take()
    saved(store, "of another engine", b"x", b"y")
    assert [named(e) for e in announcer.take()] == [(BlockRemoved, [name(request.block_hashes[1])])]
    store.clear()
    assert [named(e) for e in announcer.take()] == [(BlockRemoved, [name(request.block_hashes[0])])]


def test_what_was_not_saved_is_not_announced(store: HostStore, announcer: Announcer) -> None:
    request: Any = Request()
    announcer.expect("j", request, places(1))
    store.reserve("j", request.block_hashes[:1])
    store.clear()
    store.commit("j")
    announcer.settled("j")
    saved(store, "j", request.block_hashes[0])
    assert announcer.take() == []
