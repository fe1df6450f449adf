"""Bytes per second through the reference connector's transports, beside a bare copy.

Both move the same blocks over the same transport, in turns, in one run: only their ratio counts.

* in process: the store beside the worker, and per layer one copy of all blocks at once;
* ZeroMQ: a store in another process over TCP, and a socket that gets the same bytes, one message a
  transfer, from and to a process that keeps them.

The connector's side is what its worker half does, from the job to its outcome, and the scheduler
half's dealings with the store: room and pins, and what becomes of them. The bare side knows no
keys, no store, no failure and no lease.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from statistics import median
from typing import Any, Protocol

import numpy as np
import torch
import zmq

from kvconform.connectors.ascend.device import CpuDevice
from kvconform.connectors.ascend.remote import RemoteTransport
from kvconform.connectors.ascend.server import StoreServer
from kvconform.connectors.ascend.settings import RemoteStore
from kvconform.connectors.ascend.store import HostStore
from kvconform.connectors.ascend.transfers import Transfer
from kvconform.connectors.ascend.transport import LocalTransport, Transport
from kvconform.connectors.ascend.wire import store_title

GOAL = 0.7
"""Of the bare copy, at the largest size."""

SIZES = (1, 16, 256)
"""Blocks of a transfer."""

LAYERS = 8
PLANE = 16 * 1024
"""Bytes of a block in one layer: 128 KiB in all."""

BLOCK = LAYERS * PLANE
POOL = 2 * max(SIZES)
LIMIT = 60.0
"""Seconds until the other process is given up."""

Way = Callable[[Sequence[int]], None]
"""Moves these blocks, one way, and returns when they are there."""


class Side(Protocol):
    """Something that saves blocks and loads them."""

    def save(self, blocks: Sequence[int]) -> None:
        """From the device."""

    def load(self, blocks: Sequence[int]) -> None:
        """What was saved last, back to the device."""


class Through:
    """The connector's way."""

    def __init__(self, transport: Transport, device: CpuDevice) -> None:
        self._transport = transport
        self._device = device
        self._jobs = itertools.count()
        self._keys: tuple[bytes, ...] = ()
        transport.register(device)

    def save(self, blocks: Sequence[int]) -> None:
        """See ``Side``."""
        job = f"save {next(self._jobs)}"
        self._transport.clear()
        self._keys = tuple(f"{job} {block}".encode() for block in blocks)
        granted = self._transport.reserve(job, self._keys)
        assert len(granted) == len(blocks), "the store has no room"
        self._move(job, "save", blocks)
        self._transport.commit(job)

    def load(self, blocks: Sequence[int]) -> None:
        """See ``Side``."""
        job = f"load {next(self._jobs)}"
        pinned = self._transport.pin(job, self._keys)
        assert pinned == len(blocks), "the store has lost blocks"
        self._move(job, "load", blocks)
        self._transport.unpin(job)

    def _move(self, job: str, direction: Any, blocks: Sequence[int]) -> None:
        transfer = Transfer(job, "r", direction, 0, self._keys, tuple(blocks), self._device)
        self._transport.submit(transfer)
        assert not self._transport.wait(job).failed_block_ids, "a transfer failed"


class BareCopy:
    """Per layer one copy of all blocks, into new memory: what is saved is kept, by whoever."""

    def __init__(self, planes: Sequence[torch.Tensor]) -> None:
        self.planes = [plane.numpy() for plane in planes]
        self.kept: list[Any] = []

    def save(self, blocks: Sequence[int]) -> None:
        """See ``Side``."""
        self.kept.clear()
        self.kept += [plane[blocks] for plane in self.planes]

    def load(self, blocks: Sequence[int]) -> None:
        """See ``Side``."""
        for plane, kept in zip(self.planes, self.kept, strict=True):
            plane[blocks] = kept


class BareSocket(BareCopy):
    """The same copy, and its bytes over TCP."""

    def __init__(self, planes: Sequence[torch.Tensor], address: str) -> None:
        super().__init__(planes)
        self._socket = zmq.Context.instance().socket(zmq.REQ)
        self._socket.connect(address)

    def save(self, blocks: Sequence[int]) -> None:
        """See ``Side``."""
        super().save(blocks)
        self._socket.send_multipart([b"save", *self.kept], copy=False)
        self._socket.recv()

    def load(self, blocks: Sequence[int]) -> None:
        """See ``Side``."""
        self._socket.send(b"load")
        for plane, frame in zip(self.planes, self._socket.recv_multipart(copy=False), strict=True):
            plane[blocks] = np.frombuffer(frame.buffer, np.uint8).reshape(len(blocks), PLANE)

    def close(self) -> None:
        """Let go of the socket."""
        self._socket.close(0)


def _serve(pipe: Connection) -> None:
    """The other process: a store, and one that keeps what it is sent."""
    store = HostStore(POOL, 1)
    server = StoreServer(store, "benchmark", RemoteStore("tcp://127.0.0.1:*", "benchmark"))
    keeper = zmq.Context.instance().socket(zmq.REP)
    keeper.bind("tcp://127.0.0.1:*")
    pipe.send((server.address, keeper.last_endpoint.decode()))
    kept: list[Any] = []
    while True:
        if keeper.poll(50):
            what, *frames = keeper.recv_multipart(copy=False)
            if what.bytes == b"save":
                kept = frames
                keeper.send(b"")
            else:
                keeper.send_multipart(kept, copy=False)
        if pipe.poll(0):
            server.close()
            keeper.close(0)
            return


@contextmanager
def _apart(planes: Sequence[torch.Tensor], device: CpuDevice) -> Iterator[dict[str, Side]]:
    """Both sides over TCP."""
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(theirs,))
    process.start()
    try:
        if not ours.poll(LIMIT):
            raise SystemExit("the other process does not answer")
        address, keeper = ours.recv()
        remote = RemoteStore(address, "benchmark", answer_seconds=LIMIT)
        transport = RemoteTransport(remote, store_title("benchmark", 1), 0)
        bare = BareSocket(planes, keeper)
        if not transport.link.reachable.wait(LIMIT):
            raise SystemExit("the store does not answer")
        yield {"bare": bare, "connector": Through(transport, device)}
        bare.close()
        transport.shutdown()
    finally:
        if process.is_alive():
            ours.send("end")
        process.join(LIMIT)
        process.kill()


def _rates(sides: dict[str, Side], count: int, rounds: int) -> dict[str, dict[str, float]]:
    """Per direction: bytes per second of both, in turns, and the ratio; medians."""
    blocks = torch.randperm(POOL, generator=torch.Generator().manual_seed(count))[:count].tolist()
    seen: dict[tuple[str, str], list[float]] = {}
    for turn in range(rounds + 1):
        for name, side in sides.items():
            ways: dict[str, Way] = {"save": side.save, "load": side.load}
            for direction, way in ways.items():
                began = time.perf_counter()
                way(blocks)
                if turn:  # the first one warms up
                    rate = count * BLOCK / (time.perf_counter() - began)
                    seen.setdefault((direction, name), []).append(rate)
    return {
        direction: {
            "bare": median(seen[direction, "bare"]),
            "connector": median(seen[direction, "connector"]),
            "ratio": median(
                ours / bare
                for ours, bare in zip(
                    seen[direction, "connector"], seen[direction, "bare"], strict=True
                )
            ),
        }
        for direction in ("save", "load")
    }


def measure(rounds: int) -> dict[str, dict[int, dict[str, dict[str, float]]]]:
    """Per transport, size and direction."""
    planes = [torch.randint(0, 255, (POOL, PLANE), dtype=torch.uint8) for _ in range(LAYERS)]
    device = CpuDevice()
    device.register_kv_caches({f"layer {i}": plane for i, plane in enumerate(planes)}, POOL)
    local = LocalTransport(HostStore(POOL, 1), 0)
    sides: dict[str, Side] = {"bare": BareCopy(planes), "connector": Through(local, device)}
    found = {"in process": {count: _rates(sides, count, rounds) for count in SIZES}}
    with _apart(planes, device) as apart:
        found["ZeroMQ"] = {count: _rates(apart, count, rounds) for count in SIZES}
    return found


def main() -> int:
    """Print it; the exit code is 1 below the goal at the largest size."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    found = measure(options.rounds)
    if options.json:
        print(json.dumps(found))
    else:
        print(f"blocks of {BLOCK // 1024} KiB in {LAYERS} layers, MiB/s; goal {GOAL}")
        print(f"{'':12}{'blocks':>7}{'':3}{'':5}{'bare':>9}{'connector':>11}{'ratio':>7}")
        for transport, sizes in found.items():
            for count, ways in sizes.items():
                for direction, row in ways.items():
                    mib = [row[side] / (1 << 20) for side in ("bare", "connector")]
                    print(f"{transport:12}{count:>7}   {direction:5}{mib[0]:>9.0f}{mib[1]:>11.0f}"
                          f"{row['ratio']:>7.2f}")  # fmt: skip
    largest = max(SIZES)
    worst = min(row["ratio"] for sizes in found.values() for row in sizes[largest].values())
    return int(worst < GOAL)


if __name__ == "__main__":
    sys.exit(main())
