"""What the simulated Mooncake says of itself, without any connector of vllm-ascend."""

from __future__ import annotations

import ctypes
import dataclasses
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import zmq

from kvconform.conformance.run import play
from kvconform.connectors.targets.resolve import resolve
from kvconform.engine import compat
from kvconform.engine.cluster import Cluster
from kvconform.faults import gate, sockets
from kvconform.faults.mooncake import HOST, MooncakeWorld, TransferEngine
from kvconform.scenario.actions import Arrive, Step
from kvconform.scenario.prompt import Prompt
from kvconform.scenario.scenario import Scenario
from kvconform.scenario.shape import Shape
from kvconform.scenario.trace import Kind, Trace

SHAPE = Shape(topology="pd", engines=2)

# The target's threads end by SystemExit, which Python passes over and pytest reports.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")


class Side:
    """An engine of the target's: some memory, a transfer engine, and a thread that does jobs."""

    def __init__(self, cluster: Cluster, index: int, text: bytes) -> None:
        config = cluster.engines[index].config
        with compat.rank_scope(config, 0, SHAPE, None):
            self.transfers = TransferEngine()
            self.jobs = gate.Queue()
        assert self.transfers.initialize(HOST, "P2PHANDSHAKE", "ascend", "") == 0
        self.memory = ctypes.create_string_buffer(text, 8)
        self.at = ctypes.addressof(self.memory)
        self.name = f"{HOST}:{self.transfers.get_rpc_port()}"
        self.answers: list[Any] = []
        threading.Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        while True:
            self.answers.append(self.jobs.get()())

    def read(self, other: Side, length: int = 8) -> None:
        self.jobs.put(
            lambda: self.transfers.batch_transfer_sync_read(
                other.name, [self.at], [other.at], [length]
            )
        )


@pytest.fixture
def world() -> MooncakeWorld:
    return MooncakeWorld()


@pytest.fixture
def cluster(world: MooncakeWorld) -> Iterator[Cluster]:
    made = Cluster(resolve("ascend"), SHAPE, world, Trace())
    yield made
    made.close()


@pytest.fixture
def sides(cluster: Cluster) -> tuple[Side, Side]:
    made = Side(cluster, 0, b"prefill"), Side(cluster, 1, b"decode")
    for side in made:
        assert side.transfers.register_memory(side.at, 8) == 0
    return made


def test_bytes_move_when_the_step_is_over(world: MooncakeWorld, sides: tuple[Side, Side]) -> None:
    prefill, decode = sides
    decode.read(prefill)
    assert decode.memory.value == b"decode"
    world.settle()
    assert (decode.memory.value, decode.answers) == (b"prefill", [0])


def test_what_is_held_moves_when_it_is_released_and_its_thread_waits(
    world: MooncakeWorld, sides: tuple[Side, Side]
) -> None:
    prefill, decode = sides
    world.hold("load", None)
    decode.read(prefill)
    decode.jobs.put(lambda: "next")
    world.settle()
    assert (decode.memory.value, decode.answers) == (b"decode", [])
    assert world.open_transfers() == 1
    assert world.release(0) == "engine 1 rank 0 read #0"
    assert (decode.memory.value, decode.answers) == (b"prefill", [0, "next"])


@pytest.mark.parametrize(
    "order",
    [
        lambda world: world.fail(1, "all", None),
        lambda world: world.cut(0, back=False),
        lambda world: world.cut(1, back=False),
        lambda world: world.transfer_engines.clear(),
    ],
)
def test_a_transfer_that_fails_moves_nothing(
    world: MooncakeWorld, sides: tuple[Side, Side], order: Callable[[MooncakeWorld], Any]
) -> None:
    prefill, decode = sides
    order(world)
    decode.read(prefill)
    world.settle()
    assert (decode.memory.value, decode.answers) == (b"decode", [-1])


def test_only_registered_memory_is_touched(world: MooncakeWorld, sides: tuple[Side, Side]) -> None:
    prefill, decode = sides
    decode.read(prefill, length=9)
    world.settle()
    assert decode.answers == [-1]


def test_a_write_goes_the_other_way(world: MooncakeWorld, sides: tuple[Side, Side]) -> None:
    prefill, decode = sides
    decode.jobs.put(
        lambda: decode.transfers.batch_transfer_sync_write(
            prefill.name, [decode.at], [prefill.at], [8]
        )
    )
    world.settle()
    assert prefill.memory.value == b"decode"


def test_messages_arrive_and_those_of_an_engine_that_is_cut_off_are_lost(
    world: MooncakeWorld, sides: tuple[Side, Side]
) -> None:
    _, decode = sides
    listener = sockets.Context().socket(zmq.ROUTER)
    listener.bind("tcp://127.0.0.1:7000")

    def listen() -> None:
        while True:
            who, _, said = listener.recv_multipart()
            listener.send_multipart((who, b"", b"heard " + said))

    threading.Thread(target=listen, daemon=True).start()
    asks = sockets.Context().socket(zmq.REQ)
    asks.connect("tcp://127.0.0.1:7000")

    def ask() -> Any:
        asks.send(b"something")
        poller = sockets.Poller()
        poller.register(asks, zmq.POLLIN)
        return asks.recv() if poller.poll(10_000) else "nothing, at once"

    decode.jobs.put(ask)
    world.settle()
    world.cut(1, back=False)
    decode.jobs.put(ask)
    world.settle()
    assert decode.answers == [b"heard something", "nothing, at once"]


def test_a_run_leaves_no_thread_behind(cluster: Cluster, sides: tuple[Side, Side]) -> None:
    cluster.world.hold("load", None)
    sides[1].read(sides[0])
    cluster.world.settle()
    cluster.close()
    assert threading.active_count() == 1
    assert sides[1].answers == [-1]


def test_a_child_whose_sibling_passes_requests_on_offers_nothing() -> None:
    ascend = resolve("ascend")
    quiet = dataclasses.replace(ascend, extra={**ascend.extra, "offers": False})
    for target, offers in ((ascend, True), (quiet, False)):
        outcome = play(target, Scenario(SHAPE, (Arrive(Prompt(0, 40), 4), Step(3))))
        assert outcome.violation is None
        (forwarded,) = outcome.trace.of(Kind.FORWARDED)
        assert forwarded.data["params"] is offers
