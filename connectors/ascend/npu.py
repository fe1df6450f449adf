"""KV on an Ascend NPU: copies beside the forwards, by way of pinned host memory.

Each direction has a *lane* of its own: a stream, and two pinned buffers that take turns, so that
the device fills one while the host empties the other. Whoever copies makes three promises:

* the lane waits for the forwards launched before the transfer, on the device, and for no others;
* a buffer is used again when the device is done with it, and not before;
* the host waits for its lane at the end, and never for the stream of the forwards.

Never run on an NPU, for none was at hand: only on the real torch_npu over a simulated CANN whose
streams are held up at will. See the README beside this file.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch

from kvconform.connectors.ascend.device import Mark, check_sizes
from kvconform.connectors.ascend.planes import KVCache, Planes
from kvconform.connectors.ascend.store import Shard

TO_DEVICE, TO_HOST = 0, 1
"""Directions, as vllm-ascend's batched copy knows them."""


class Buffer:
    """Pinned host memory for some blocks.

    Args:
        npu: ``torch.npu``.
        planes: the device's KV.
        blocks: how many fit.

    Attributes:
        memory: ``[blocks, block_bytes]``.
        pieces: the same by block and plane.
        done: the device is done with the memory.
    """

    def __init__(self, npu: Any, planes: Planes, blocks: int) -> None:
        self.memory = self._allocate(blocks, planes.block_bytes)
        self.pieces = [
            [
                row[offset : offset + plane.size]
                for offset, plane in zip(planes.offsets, planes.planes, strict=True)
            ]
            for row in self.memory
        ]
        self.done = npu.Event()

    def _allocate(self, blocks: int, block_bytes: int) -> torch.Tensor:
        # From and to other memory, a copy makes the host wait for all that is before it.
        size = (blocks, block_bytes)
        return torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=True)

    def fill(self, shards: Sequence[Shard]) -> None:
        """Put these into the first rows."""
        for row, shard in zip(self.memory, shards, strict=False):
            row.copy_(shard)


class Lane:
    """Copies of one direction.

    Args:
        npu: ``torch.npu``; the current device is the one of ``planes``.
        planes: the device's KV.
        staging_blocks: blocks that fit in a buffer.

    Attributes:
        stream: on which the copies run, one after another.
        lock: held by the thread that copies.
    """

    buffer_class: ClassVar[type[Buffer]] = Buffer

    def __init__(self, npu: Any, planes: Planes, staging_blocks: int) -> None:
        self.stream = npu.Stream()
        self.lock = threading.Lock()
        self._planes = planes
        # vllm-ascend's copy of many pieces in one call, where it is there.
        batch = getattr(torch.ops._C_ascend, "swap_blocks_batch", None)
        self._copy = functools.partial(copy_batched, batch) if batch else _piece_by_piece
        self._buffers = itertools.cycle(
            [self.buffer_class(npu, planes, staging_blocks) for _ in range(2)]
        )

    def next_buffer(self) -> Buffer:
        """The buffer whose turn it is; the device is done with it."""
        buffer = next(self._buffers)
        buffer.done.synchronize()
        return buffer

    def copy(self, block_ids: Sequence[int], buffer: Buffer, direction: int) -> None:
        """Launch the copies of these blocks from or to the first rows of ``buffer``."""
        self._copy(self._planes, block_ids, buffer, direction)
        buffer.done.record(self.stream)

    def take(self, buffer: Buffer, count: int) -> list[Shard]:
        """What the device has put into the first rows, in memory of its own."""
        buffer.done.synchronize()
        return [row.clone() for row in buffer.memory[:count]]


class NpuDevice:
    """See ``Device``.

    Args:
        staging_blocks: blocks that fit in a pinned buffer.
    """

    takes_time = True
    lane_class: ClassVar[type[Lane]] = Lane

    def __init__(self, staging_blocks: int) -> None:
        self._npu: Any = vars(torch)["npu"]  # torch_npu puts it there
        self._staging_blocks = staging_blocks
        self._planes = Planes({}, None)

    def register_kv_caches(self, kv_caches: Mapping[str, KVCache], num_blocks: int | None) -> None:
        """See ``Device``."""
        self._planes = Planes(kv_caches, num_blocks)
        # Other threads begin with device 0, and with streams of their own.
        self._index = self._npu.current_device()
        self._compute = self._npu.current_stream()
        self._reads, self._writes = (
            self.lane_class(self._npu, self._planes, self._staging_blocks) for _ in range(2)
        )

    @property
    def block_bytes(self) -> int:
        """See ``Device``."""
        return self._planes.block_bytes

    @property
    def layout(self) -> str:
        """See ``Device``."""
        return self._planes.layout

    def mark(self) -> Mark:
        """See ``Device``."""
        with self._npu.device(self._index):
            launched = self._npu.Event()
            launched.record(self._compute)
        return launched

    def read(self, block_ids: Sequence[int], after: Mark | None = None) -> list[Shard]:
        """See ``Device``."""
        shards: list[Shard] = []
        with self._on(self._reads, after) as lane:
            filled: tuple[Buffer, int] | None = None
            for part in _parts(block_ids, self._staging_blocks):
                buffer = lane.next_buffer()
                lane.copy(part, buffer, TO_HOST)
                if filled is not None:  # while the device fills the other one
                    shards += lane.take(*filled)
                filled = buffer, len(part)
            if filled is not None:
                shards += lane.take(*filled)
        return shards

    def write(
        self, block_ids: Sequence[int], shards: Sequence[Shard], after: Mark | None = None
    ) -> None:
        """See ``Device``."""
        check_sizes(shards, self.block_bytes)
        left = iter(shards)
        with self._on(self._writes, after) as lane:
            for part in _parts(block_ids, self._staging_blocks):
                buffer = lane.next_buffer()
                buffer.fill(list(itertools.islice(left, len(part))))
                lane.copy(part, buffer, TO_DEVICE)

    @contextlib.contextmanager
    def _on(self, lane: Lane, after: Mark | None) -> Iterator[Lane]:
        """Copies on a lane, from waiting for the forwards to the last byte."""
        with lane.lock, self._current(lane):
            self._follow(lane, self.mark() if after is None else after)
            try:
                yield lane
            finally:  # whatever has been launched: its memory is given back now
                self._finish(lane)

    @contextlib.contextmanager
    def _current(self, lane: Lane) -> Iterator[None]:
        """This thread uses the device, and launches on the lane."""
        with self._npu.device(self._index), self._npu.stream(lane.stream):
            yield

    def _follow(self, lane: Lane, after: Mark) -> None:
        """Else a save reads a block before its forward has written it, and a load is overwritten by
        the forward of the block's former owner."""
        lane.stream.wait_event(after)

    def _finish(self, lane: Lane) -> None:
        """Wait for the lane."""
        lane.stream.synchronize()


def copy_batched(
    batch: Any, planes: Planes, block_ids: Sequence[int], buffer: Buffer, direction: int
) -> None:
    """Launch copies with one call of ``batch(sources, targets, sizes, direction)``, in bytes."""
    count = len(block_ids)
    there = torch.from_numpy(planes.addresses(block_ids).reshape(-1))
    rows = buffer.memory.data_ptr() + planes.block_bytes * np.arange(count)
    here = torch.from_numpy((rows[:, None] + planes.offsets).reshape(-1))
    sizes = torch.from_numpy(np.tile(planes.sizes, count))
    source, target = (there, here) if direction == TO_HOST else (here, there)
    batch(source, target, sizes, direction)


def _piece_by_piece(
    planes: Planes, block_ids: Sequence[int], buffer: Buffer, direction: int
) -> None:
    for block_id, pieces in zip(block_ids, buffer.pieces, strict=False):
        for plane, here in zip(planes.planes, pieces, strict=True):
            there = plane.blocks[block_id]
            source, target = (there, here) if direction == TO_HOST else (here, there)
            target.copy_(source, non_blocking=True)


def _parts(block_ids: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    for start in range(0, len(block_ids), size):
        yield block_ids[start : start + size]
