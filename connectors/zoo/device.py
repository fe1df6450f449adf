"""Copies from and to a device that are not where, when, or what they should be."""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from kvconform.connectors.ascend.connector import AscendConnector
from kvconform.connectors.ascend.device import Mark
from kvconform.connectors.ascend.npu import TO_HOST, Buffer, Lane, NpuDevice, copy_batched
from kvconform.connectors.ascend.store import Shard
from kvconform.connectors.zoo.books import SavesAsItGoes


class _FollowsNothing(NpuDevice):
    def _follow(self, lane: Lane, after: Mark) -> None:
        pass


class FollowsNothing(AscendConnector):
    """Copies do not wait for the forwards launched before them (B-100)."""

    npu_device_class = _FollowsNothing


class SavesBehindNothing(SavesAsItGoes):
    """What a step computes is copied in that step, and may not have been computed yet (B-100)."""

    npu_device_class = _FollowsNothing


class _TakesTheNextBuffer(Lane):
    def next_buffer(self) -> Buffer:
        return next(self._buffers)


class _ReusesTheBuffer(NpuDevice):
    lane_class = _TakesTheNextBuffer


class ReusesTheBuffer(AscendConnector):
    """A staging buffer is filled again while the copy out of it is under way."""

    npu_device_class = _ReusesTheBuffer


class _LoadsOnTheWay(NpuDevice):
    def _finish(self, lane: Lane) -> None:
        if lane is self._reads:
            super()._finish(lane)


class LoadsOnTheWay(AscendConnector):
    """A load is reported when its copies have been launched."""

    npu_device_class = _LoadsOnTheWay


class _OnAnotherStream(NpuDevice):
    @contextlib.contextmanager
    def _current(self, lane: Lane) -> Iterator[None]:
        with self._npu.device(self._index):
            yield


class OnAnotherStream(AscendConnector):
    """Copies run on the thread's own stream, and their end is awaited on the lane's."""

    npu_device_class = _OnAnotherStream


class _SetsNoDevice(NpuDevice):
    def __init__(self, staging_blocks: int) -> None:
        super().__init__(staging_blocks)
        self._thread = ThreadPoolExecutor(1, "kv-copies")

    @contextlib.contextmanager
    def _current(self, lane: Lane) -> Iterator[None]:
        lane.stream = self._npu.Stream()
        with self._npu.stream(lane.stream):
            yield

    def read(self, block_ids: Sequence[int], after: Mark | None = None) -> list[Shard]:
        return self._thread.submit(super().read, block_ids, after or self.mark()).result()

    def write(
        self, block_ids: Sequence[int], shards: Sequence[Shard], after: Mark | None = None
    ) -> None:
        self._thread.submit(super().write, block_ids, shards, after or self.mark()).result()


class SetsNoDevice(AscendConnector):
    """A thread of its own copies, and has never been told on which device (B-141)."""

    npu_device_class = _SetsNoDevice


class _Borrowed(Buffer):
    """Pinned memory straight from CANN: no allocator of torch keeps it until copies are done."""

    def _allocate(self, blocks: int, block_bytes: int) -> torch.Tensor:
        self._address, size = ctypes.c_void_p(), blocks * block_bytes
        _cann().aclrtMallocHost(ctypes.byref(self._address), ctypes.c_size_t(size))
        assert self._address.value
        memory = (ctypes.c_uint8 * size).from_address(self._address.value)
        return torch.frombuffer(memory, dtype=torch.uint8).view(blocks, block_bytes)

    def give_back(self) -> None:
        _cann().aclrtFreeHost(self._address)


def _cann() -> ctypes.CDLL:
    return ctypes.CDLL("libascendcl.so")


def launch_copies(
    sources: torch.Tensor, targets: torch.Tensor, sizes: torch.Tensor, direction: int
) -> None:
    """What vllm-ascend's batched copy does, by CANN's own call; torch does not hear of it."""
    stream = ctypes.c_void_p(vars(torch)["npu"].current_stream().npu_stream)
    for source, target, size in zip(*(t.tolist() for t in (sources, targets, sizes)), strict=True):
        count = ctypes.c_size_t(size)
        failed = _cann().aclrtMemcpyAsync(
            ctypes.c_void_p(target), count, ctypes.c_void_p(source), count, 1 + direction, stream
        )
        if failed:
            raise RuntimeError(f"aclrtMemcpyAsync: {failed}")


class _BorrowsBuffers(Lane):
    buffer_class = _Borrowed

    def __init__(self, npu: Any, planes: Any, staging_blocks: int) -> None:
        super().__init__(npu, planes, staging_blocks)
        self._make = lambda: _Borrowed(npu, planes, staging_blocks)
        self._out: list[_Borrowed] = []
        self._copy = functools.partial(copy_batched, launch_copies)

    def next_buffer(self) -> Buffer:
        self._out.append(self._make())
        return self._out[-1]

    def give_back(self) -> None:
        while self._out:
            self._out.pop().give_back()


class _FreesTheBuffer(NpuDevice):
    lane_class = _BorrowsBuffers

    def _finish(self, lane: Lane) -> None:
        assert isinstance(lane, _BorrowsBuffers)
        lane.give_back()
        super()._finish(lane)


class FreesTheBuffer(AscendConnector):
    """Pinned memory is freed when the copies from it have been launched."""

    npu_device_class = _FreesTheBuffer


class _SavesOnTheWay(NpuDevice):
    def _finish(self, lane: Lane) -> None:
        if lane is self._writes:
            super()._finish(lane)

    def read(self, block_ids: Sequence[int], after: Mark | None = None) -> list[Shard]:
        with self._on(self._reads, after) as lane:
            buffer = Buffer(self._npu, self._planes, len(block_ids))
            lane.copy(block_ids, buffer, TO_HOST)
        return list(buffer.memory)


class SavesOnTheWay(AscendConnector):
    """A save is reported, and its blocks are freed, before they have been copied (B-090)."""

    npu_device_class = _SavesOnTheWay


class _SwapsKAndV(NpuDevice):
    def write(
        self, block_ids: Sequence[int], shards: Sequence[Shard], after: Mark | None = None
    ) -> None:
        sizes = self._planes.sizes.tolist()
        swapped = [min(index ^ 1, len(sizes) - 1) for index in range(len(sizes))]
        super().write(
            block_ids,
            [torch.cat([shard.split(sizes)[index] for index in swapped]) for shard in shards],
            after,
        )


class SwapsKAndV(AscendConnector):
    """What was K of a layer is loaded as its V, and the other way round."""

    npu_device_class = _SwapsKAndV


class _Pageable(Buffer):
    def _allocate(self, blocks: int, block_bytes: int) -> torch.Tensor:
        return torch.empty((blocks, block_bytes), dtype=torch.uint8, device="cpu")


class _StagesInPageable(Lane):
    buffer_class = _Pageable


class _PinsNothing(NpuDevice):
    lane_class = _StagesInPageable


class PinsNothing(AscendConnector):
    """Staging memory is not pinned."""

    npu_device_class = _PinsNothing


class _MarksTheStart(Lane):
    def copy(self, block_ids: Sequence[int], buffer: Buffer, direction: int) -> None:
        buffer.done.record(self.stream)
        self._copy(self._planes, block_ids, buffer, direction)


class _TakesTooEarly(NpuDevice):
    lane_class = _MarksTheStart


class TakesTooEarly(AscendConnector):
    """The event that is to tell of a copy's end is recorded before the copy."""

    npu_device_class = _TakesTooEarly
