"""Pulls by Mooncake: what is fetched, what is given up, and what goes in messages after all.

The stand-in reads memory of this process as Mooncake does of another one, and at the moment that a
test chooses. With the package there, the real engine is tried as well, across processes.
"""

from __future__ import annotations

import ctypes
import dataclasses
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvconform.connectors.ascend import mooncake, peers
from kvconform.connectors.ascend.mooncake import Engine, Memory, Reader, Slots
from kvconform.connectors.ascend.settings import Mooncake, Settings
from kvconform.connectors.ascend.transfers import GoneError
from kvconform.connectors.ascend.wire import unpack
from tests.ascend.apart import LIMIT, make_device, values
from tests.ascend.rig import make_config
from tests.ascend.test_peers import (
    OFFER,
    SETTINGS,
    Make,
    Prefill,
    at,
    prefill_settings,
    source,
)
from tests.ascend.test_peers import address as address
from tests.ascend.test_peers import make as make

TCP = Mooncake("tcp")
OPEN = {"allow_remote": True}


class StandIn(Engine):
    """Reads at once, or never, or not before the test has done something."""

    def __init__(self, mooncake: Mooncake = TCP) -> None:
        self.session = f"{mooncake.host}:{id(self) % 60_000}"
        self.given: list[Memory] = []
        self.reads: list[int] = []  # bytes
        self.in_time = True
        self.before: Callable[[], None] = lambda: None

    def close(self) -> None:
        """Nothing has been registered."""

    def give_back(self, memory: Memory) -> None:
        self.given.remove(memory)

    def memory(self, size: int) -> Memory:
        self.given.append(np.zeros(size, np.uint8))
        return self.given[-1]

    def read(self, session: str, place: int, into: Memory, deadline: float) -> bool:
        self.before()
        if self.in_time:
            ctypes.memmove(into.ctypes.data, place, into.nbytes)
            self.reads.append(into.nbytes)
        return self.in_time


def shard(value: int, size: int = 8) -> Any:
    return unpack(bytearray([value]) * size)


class TestSlots:
    def test_what_is_put_is_there_until_it_is_taken(self) -> None:
        engine = StandIn()
        slots, reader = Slots(engine, 24, LIMIT), Reader(engine, 24)
        put = slots.put([shard(1), shard(2)])
        assert put is not None
        ticket, place = put
        assert reader.fetch(slots.session, place, 16, 0.0).tolist() == [1] * 8 + [2] * 8
        assert slots.take(ticket)
        assert not slots.take(ticket)
        assert not slots.take("")

    def test_each_copy_has_a_slot_of_its_own_while_there_are_some(self) -> None:
        slots = Slots(StandIn(), 8, LIMIT)
        first, second = slots.put([shard(1)]), slots.put([shard(2)])
        assert first is not None
        assert second is not None
        assert first[1] != second[1]
        assert slots.put([shard(3)]) is None
        assert slots.take(first[0])
        third = slots.put([shard(3)])
        assert third is not None
        assert third[1] == first[1]
        assert third[0] not in (first[0], second[0])

    def test_what_is_larger_than_a_slot(self) -> None:
        assert Slots(StandIn(), 8, LIMIT).put([shard(1), shard(2)]) is None

    def test_what_nobody_takes_is_given_up(self) -> None:
        now = 0.0
        slots = Slots(StandIn(), 8, 5.0, lambda: now)
        late = slots.put([shard(1)])
        assert late is not None
        assert slots.put([shard(2)]) is not None
        now = 4.9
        assert slots.put([shard(3)]) is None
        now = 5.0
        assert slots.put([shard(3)]) is not None
        assert not slots.take(late[0])  # what was read may be the third's


class TestReader:
    def test_memory_of_a_read_that_goes_on_is_not_used_again(self) -> None:
        engine = StandIn()
        reader = Reader(engine, 8)
        place = np.full(8, 7, np.uint8)
        engine.in_time = False
        for count in range(1, 5):
            assert reader.session
            with pytest.raises(GoneError, match="in time"):
                reader.fetch("there", place.ctypes.data, 8, 0.0)
            assert len(engine.given) == count
        assert not reader.session

    def test_it_gives_its_memory_back(self) -> None:
        engine = StandIn()
        reader = Reader(engine, 8)
        reader.close()
        place = np.full(8, 7, np.uint8)
        reader.fetch("there", place.ctypes.data, 8, 0.0)
        assert len(engine.given) == 1
        for _ in range(2):
            reader.close()
            assert engine.given == []

    @pytest.mark.parametrize("size", [0, 9])
    def test_more_than_a_slot_holds_is_not_believed(self, size: int) -> None:
        with pytest.raises(GoneError, match=f"{size} bytes"):
            Reader(StandIn(), 8).fetch("there", 1, size, 0.0)


class Sides:
    """Two ranks, one that offers and one that reads, and what they read by."""

    def __init__(self, make: Make, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.engines: list[StandIn] = []
        self.device = make_device()
        self._make = make
        self._address = address
        monkeypatch.setattr(peers, "Engine", self._start)

    def _start(self, mooncake: Mooncake) -> StandIn:
        self.engines.append(StandIn(mooncake))
        return self.engines[-1]

    def begin(
        self, offering: Mooncake | None = TCP, reading: Mooncake | None = TCP, **terms: Any
    ) -> None:
        terms |= OPEN
        there = prefill_settings(self._address, peers=at(self._address, **terms), mooncake=offering)
        here = dataclasses.replace(SETTINGS, peers=at("", **terms), mooncake=reading)
        self.prefill = self._make(there, make_device(100))
        self.decode = self._make(here, self.device)
        self.prefill.step(OFFER)

    def pull(self, blocks: Sequence[int] = (2, 1), to: Sequence[int] = (0, 3)) -> set[int]:
        return self.decode.pull(source(self._address, blocks), to)

    @property
    def reads(self) -> list[list[int]]:
        return [engine.reads for engine in self.engines]


class TestPulls:
    """Both ends in this process, and yet apart."""

    @pytest.fixture
    def sides(self, make: Make, address: str, monkeypatch: pytest.MonkeyPatch) -> Sides:
        return Sides(make, address, monkeypatch)

    def test_bytes_are_fetched(self, sides: Sides) -> None:
        sides.begin()
        assert sides.pull() == set()
        assert values(sides.device) == [102, 1, 2, 101]
        assert sides.reads == [[], [1600]]
        sides.decode.settle()
        assert sides.prefill.finished() == ({"request"}, set())

    def test_what_does_not_fit_in_a_slot_takes_several_turns(self, sides: Sides) -> None:
        sides.begin(max_message_bytes=1000)
        assert sides.pull((3, 2, 1, 0), (0, 1, 2, 3)) == set()
        assert values(sides.device) == [103, 102, 101, 100]
        assert sides.reads == [[], [800] * 4]

    @pytest.mark.parametrize("ends", [{"offering": None}, {"reading": None}])
    def test_with_mooncake_at_one_end_blocks_go_in_messages(
        self, sides: Sides, ends: dict[str, None]
    ) -> None:
        sides.begin(**ends)
        assert sides.pull() == set()
        assert values(sides.device) == [102, 1, 2, 101]
        assert sides.reads == [[]]

    def test_no_slot_is_free(self, sides: Sides, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(mooncake, "_SLOTS", 0)
        sides.begin()
        assert sides.pull() == set()
        assert values(sides.device) == [102, 1, 2, 101]
        assert sides.reads == [[], []]

    def test_a_copy_that_was_given_up_is_not_used(self, sides: Sides) -> None:
        sides.begin()
        slots = sides.prefill.transport._exchange._peers._server._slots

        def give_up() -> None:  # and use the slot for someone else
            (slot,) = slots._slots
            slot.until = time.monotonic()
            assert slots.put([shard(9)]) is not None

        sides.engines[1].before = give_up
        assert sides.pull() == {0, 3}
        assert values(sides.device) == [0, 1, 2, 3]

    def test_a_read_that_does_not_end_in_time(self, sides: Sides) -> None:
        sides.begin()
        sides.engines[1].in_time = False
        assert sides.pull() == {0, 3}
        assert values(sides.device) == [0, 1, 2, 3]


class TestSettings:
    def read(self, **extra: Any) -> Mooncake | None:
        return Settings.read(make_config(**extra), None).mooncake

    def test_it_is_an_option(self) -> None:
        assert self.read(token="secret", allow_remote=True) is None

    @pytest.mark.parametrize(
        ("extra", "host"),
        [
            ({}, "127.0.0.1"),
            ({"offer_address": "ipc:///x"}, "127.0.0.1"),
            ({"offer_address": "tcp://10.0.0.1:7000"}, "10.0.0.1"),
            ({"offer_address": "tcp://10.0.0.1:7000", "mooncake_host": "there"}, "there"),
        ],
    )
    def test_the_host_is_the_one_of_the_offers(self, extra: dict[str, Any], host: str) -> None:
        chosen = {"token": "secret", "allow_remote": True, "mooncake": "rdma"}
        assert self.read(**chosen, **extra) == Mooncake("rdma", host)

    @pytest.mark.parametrize(
        ("extra", "complaint"),
        [
            ({}, "needs a 'token'"),
            ({"token": "secret"}, "needs 'allow_remote'"),
            ({"token": "secret", **OPEN, "mooncake": "pigeon"}, "'tcp' or 'rdma', got 'pigeon'"),
        ],
    )
    def test_what_is_missing_is_named(self, extra: dict[str, Any], complaint: str) -> None:
        with pytest.raises(ValueError, match=complaint):
            self.read(**{"mooncake": "tcp"} | extra)

    def test_without_the_package(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "mooncake.engine", None)
        with pytest.raises(ValueError, match="needs the package mooncake-transfer-engine"):
            Engine(TCP)


class TestReal:
    """The package's own engine, over TCP."""

    @pytest.fixture(autouse=True)
    def _needs_the_package(self) -> None:
        pytest.importorskip("mooncake.engine", exc_type=ImportError)

    @pytest.fixture
    def engine(self) -> Iterator[Engine]:
        engine = Engine(TCP)
        yield engine
        engine.close()

    def test_it_reads_what_another_process_offers(self, make: Make, tmp_path: Path) -> None:
        address = f"ipc://{tmp_path}/offers"
        terms = at(address, **OPEN)
        prefill = Prefill(prefill_settings(address, peers=terms, mooncake=TCP))
        prefill.do(OFFER)
        device = make_device()
        settings = dataclasses.replace(SETTINGS, peers=at("", **OPEN), mooncake=TCP)
        decode = make(settings, device)
        engine = decode.transport._exchange._peers._engine
        seen, read = [], engine.read

        def note(session: str, place: int, into: Memory, deadline: float) -> bool:
            seen.append(into.nbytes)
            return bool(read(session, place, into, deadline))

        engine.read = note
        assert decode.pull(source(address)) == set()
        assert seen == [1600]
        assert values(device) == [102, 1, 2, 101]
        decode.settle()
        assert prefill.do("finished") == ({"request"}, set())
        prefill.stop()

    def test_an_engine_that_is_gone(self, engine: Engine) -> None:
        memory = engine.memory(8)
        with pytest.raises(GoneError, match=r"127\.0\.0\.1:1"):
            engine.read("127.0.0.1:1", 1, memory, time.monotonic() + LIMIT)

    def test_memory_that_nobody_gave(self, engine: Engine) -> None:
        """Mooncake reads what has been registered, and nothing beside it."""
        other = Engine(TCP)
        secret = np.full(8, 7, np.uint8)
        with pytest.raises(GoneError, match="could not read"):
            engine.read(
                other.session, secret.ctypes.data, engine.memory(8), time.monotonic() + LIMIT
            )
        other.close()

    def test_memory_that_was_given_back(self, engine: Engine) -> None:
        other = Engine(TCP)
        memory = other.memory(8)
        into = engine.memory(8)
        until = time.monotonic() + LIMIT
        assert engine.read(other.session, memory.ctypes.data, into, until)
        other.give_back(memory)
        with pytest.raises(GoneError, match="could not read"):
            engine.read(other.session, memory.ctypes.data, into, until)
        for _ in range(2):
            other.close()
