"""The way to an NPU: the real torch_npu over the simulated CANN, and whatever may be late.

Streams of forwards and of copies are held: nothing runs before somebody waits for it.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch

from kvconform.connectors.ascend.device import CpuDevice
from kvconform.connectors.ascend.npu import Lane, NpuDevice, copy_batched
from kvconform.connectors.ascend.rank import RankDevice
from kvconform.connectors.ascend.store import HostStore
from kvconform.connectors.ascend.transport import LocalTransport, Outcome, Transfer
from kvconform.connectors.zoo import device as zoo
from kvconform.faults.devices import cann
from kvconform.faults.devices.cann import Cann

pytestmark = pytest.mark.skipif(cann.missing() is not None, reason=str(cann.missing()))

INDEX = 2
"""The device; 0 is what a thread has that has set none."""

BLOCKS, STAGING = 8, 2
KEYS = tuple(bytes([block]) for block in range(BLOCKS))
LIMIT = 30.0


@pytest.fixture
def sim() -> Iterator[Cann]:
    loaded = cann.load()
    npu().set_device(INDEX)
    loaded.compute(npu().current_stream())
    loaded.reset()
    loaded.use(INDEX, 1)
    yield loaded
    loaded.reset()


def npu() -> Any:
    return vars(torch)["npu"]


class Rank:
    """KV on a device, laid out as vllm-ascend has it: K and V of each layer apart.

    Attributes:
        device: what is tested.
        twin: the same numbers, in host memory.
    """

    def __init__(self, cls: type[NpuDevice], sim: Cann, staging: int = STAGING) -> None:
        self._sim = sim
        numbers = torch.arange(2 * 2 * BLOCKS * 6, dtype=torch.float32).view(2, 2, BLOCKS, 3, 2)
        host = {str(layer): tuple(numbers[layer]) for layer in range(2)}
        self.kv = {n: tuple(t.pin_memory().to(f"npu:{INDEX}") for t in c) for n, c in host.items()}
        npu().synchronize()
        self.device, self.twin = cls(staging), CpuDevice()
        self.device.register_kv_caches(self.kv, BLOCKS)
        self.twin.register_kv_caches(host, BLOCKS)

    def forward(self, block: int, value: float) -> None:
        """A forward that fills a block is launched, here and on the twin."""
        filled = torch.full((3, 2), value).pin_memory()
        for tensors in self.kv.values():
            for tensor in tensors:
                tensor[block].copy_(filled, non_blocking=True)
        self._keeps = filled
        self.twin.write([block], [torch.full((24,), value).view(torch.uint8)])

    def has(self, block_ids: Sequence[int]) -> bool:
        """Whether these blocks are what the twin says, for a forward that is launched now."""
        found = []
        for block in block_ids:
            rows = torch.empty(4, 3, 2).pin_memory()
            for row, tensor in zip(rows, (t for c in self.kv.values() for t in c), strict=True):
                row.copy_(tensor[block], non_blocking=True)
            found.append(rows)
        npu().current_stream().synchronize()
        wanted = self.twin.read(block_ids)
        return all(
            torch.equal(rows.flatten(), shard.view(torch.float32))
            for rows, shard in zip(found, wanted, strict=True)
        )


Make = Callable[[type[NpuDevice]], Rank]


@pytest.fixture
def make(sim: Cann) -> Make:
    return lambda cls: Rank(cls, sim)


def saves(rank: Rank, sim: Cann) -> bool:
    """A forward writes blocks, they are read behind it, and go to somebody else at once."""
    for block in (1, 3, 5):
        rank.forward(block, 100.0 + block)
    wanted = rank.twin.read((1, 3, 4, 5, 6))
    shards = rank.device.read((1, 3, 4, 5, 6), rank.device.mark())
    for block in (1, 3, 5):
        rank.forward(block, 200.0 + block)
    sim.run()
    return all(torch.equal(one, other) for one, other in zip(shards, wanted, strict=True))


def loads(rank: Rank, sim: Cann) -> bool:
    """The last forward of a block's former owner, a load, and the forward that reads it."""
    shards = [(torch.arange(24.0) + 300.0 + n).view(torch.uint8) for n in range(5)]
    rank.forward(1, 100.0)
    rank.device.write((1, 3, 4, 5, 6), shards, rank.device.mark())
    rank.twin.write((1, 3, 4, 5, 6), shards)
    return rank.has(range(BLOCKS))


@contextlib.contextmanager
def held(sim: Cann, newest_first: bool) -> Iterator[None]:
    sim.order(newest_first)
    sim.hold("any")
    yield
    sim.release("any")


class _Batches(Lane):
    """Copies by addresses, many in one call, as with vllm-ascend's own operator."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._copy = functools.partial(copy_batched, zoo.launch_copies)


class Batching(NpuDevice):
    lane_class = _Batches


@pytest.mark.parametrize("newest_first", [False, True])
@pytest.mark.parametrize("cls", [NpuDevice, Batching])
class TestRight:
    def test_saves(self, sim: Cann, make: Make, cls: Any, newest_first: bool) -> None:
        rank = make(cls)
        with held(sim, newest_first):
            assert saves(rank, sim)
        assert not sim.complaints()

    def test_loads(self, sim: Cann, make: Make, cls: Any, newest_first: bool) -> None:
        rank = make(cls)
        with held(sim, newest_first):
            assert loads(rank, sim)
        assert not sim.complaints()

    def test_it_does_not_wait_for_later_forwards(
        self, sim: Cann, make: Make, cls: Any, newest_first: bool
    ) -> None:
        rank = make(cls)
        with held(sim, newest_first):
            mark = rank.device.mark()
            ran: list[int] = []
            sim.call(npu().current_stream(), lambda: ran.append(1))
            rank.device.write([1], rank.device.read([2], mark), mark)
            assert not ran

    def test_threads_need_not_know_the_device(
        self, sim: Cann, make: Make, cls: Any, newest_first: bool
    ) -> None:
        rank = make(cls)
        good: list[bool] = []

        def work() -> None:
            shards = rank.device.read([1, 2, 3])
            rank.device.write([4, 5, 6], shards)
            good.append(all(map(torch.equal, shards, rank.twin.read([1, 2, 3]))))

        with held(sim, newest_first):
            thread = threading.Thread(target=work)
            thread.start()
            thread.join(LIMIT)
        assert good == [True]
        assert not sim.complaints()
        assert npu().current_device() == INDEX

    @pytest.mark.parametrize("when_run", [False, True])
    def test_a_copy_that_fails_is_told_of(
        self, sim: Cann, make: Make, cls: Any, newest_first: bool, when_run: bool
    ) -> None:
        rank = make(cls)
        for use in (
            lambda: rank.device.read(range(5)),
            lambda: rank.device.write(range(5), rank.twin.read(range(5))),
        ):
            with held(sim, newest_first):
                sim.fail(1, when_run)
                with pytest.raises(RuntimeError):
                    use()
            assert not sim.waiting()
            use()  # it was that one only
        assert rank.has(range(BLOCKS))

    def test_two_ends_are_laid_out_alike(
        self, sim: Cann, make: Make, cls: Any, newest_first: bool
    ) -> None:
        rank = make(cls)
        assert rank.device.layout == rank.twin.layout
        assert rank.device.block_bytes == rank.twin.block_bytes == 96
        assert rank.device.read([]) == []
        with pytest.raises(ValueError, match="no block"):
            rank.device.write([1], [torch.zeros(5, dtype=torch.uint8)])


WRONG = {
    zoo.FollowsNothing: {"saves", "loads"},
    zoo.SavesBehindNothing: {"saves", "loads"},
    zoo.ReusesTheBuffer: {"loads", "changed"},
    zoo.LoadsOnTheWay: {"loads"},
    zoo.OnAnotherStream: {"saves"},
    zoo.SetsNoDevice: {"foreign-device"},
    zoo.FreesTheBuffer: {"freed-in-flight"},
    zoo.SavesOnTheWay: {"saves"},
    zoo.SwapsKAndV: {"loads"},
    zoo.PinsNothing: {"pageable"},
    zoo.TakesTooEarly: {"saves"},
}
"""Of each mutant: what goes wrong with it, or is complained of."""


@pytest.mark.parametrize("cls", WRONG, ids=lambda cls: cls.__name__)
def test_what_is_wrong_shows(sim: Cann, make: Make, cls: Any) -> None:
    seen = set()
    for what in (saves, loads):
        rank = make(cls.npu_device_class)
        with held(sim, newest_first=False):
            if not what(rank, sim):
                seen.add(what.__name__)
        seen.update(complaint.wrong for complaint in sim.complaints())
        sim.discard()
    assert seen >= WRONG[cls]


def test_a_rank_takes_what_its_kv_is_on(sim: Cann) -> None:
    rank = RankDevice(NpuDevice, STAGING)
    assert not rank.takes_time
    rank.register_kv_caches({"layer": torch.empty(BLOCKS, 4, device=f"npu:{INDEX}")}, BLOCKS)
    assert rank.takes_time


def test_a_save_and_a_load_go_on_while_the_engine_does(sim: Cann, make: Make) -> None:
    rank = make(NpuDevice)
    store = HostStore(BLOCKS, 1)
    transport = LocalTransport(store, 0)
    transport.register(rank.device)

    def start(name: str, direction: Any, block_ids: tuple[int, ...]) -> None:
        device = rank.device
        transport.submit(
            Transfer(name, "r", direction, 0, KEYS[:3], block_ids, device, device.mark())
        )

    def ends(name: str) -> Outcome:
        outcome = transport.wait(name)
        assert name not in {one.transfer_id for one in transport.poll()}
        return outcome

    assert store.reserve("save", KEYS[:3]) == [0, 1, 2]
    rank.forward(1, 7.0)
    start("save", "save", (1, 2, 3))
    assert ends("save").failed_block_ids == ()
    store.commit("save")
    assert store.pin("load", KEYS[:3]) == 3
    start("load", "load", (4, 5, 6))
    assert ends("load").failed_block_ids == ()
    rank.twin.write((4, 5, 6), rank.twin.read((1, 2, 3)))
    assert rank.has(range(BLOCKS))
    sim.fail(1)
    start("again", "load", (4, 5, 6))
    assert ends("again").failed_block_ids == (4, 5, 6)
    transport.shutdown()
    transport.shutdown()
