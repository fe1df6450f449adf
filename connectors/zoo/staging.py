"""Memory between store and device: how much of it there is, and whose it is at the moment."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kvconform.connectors.ascend.connector import AscendConnector
from kvconform.connectors.ascend.device import Device, Mark
from kvconform.connectors.ascend.metadata import Direction, StepJobs
from kvconform.connectors.ascend.scheduler import SchedulerHalf
from kvconform.connectors.ascend.store import Shard
from kvconform.connectors.ascend.worker import WorkerHalf
from kvconform.connectors.zoo.books import SavesAsItGoes, SavesInStep

if TYPE_CHECKING:
    from vllm.v1.request import Request

Finish = tuple[bool, dict[str, Any] | None]
Finished = tuple[set[str] | None, set[str] | None]

BLOCKS = 3
"""What fits into a buffer."""


class _ReturnsTheBudget(SchedulerHalf):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._budget = BLOCKS
        self._buffers: dict[str, int] = {}  # blocks, by request

    def _promise(self, request: Request, local: int, found: int) -> tuple[int, bool]:
        return super()._promise(request, local, min(found, self._budget))

    def _plan(
        self, job_id: str, request: Request, life: Any, direction: Direction,
        keys: Sequence[bytes], block_ids: Sequence[int], *rest: Any, **more: Any,
    ) -> None:  # fmt: skip
        if direction == "load":
            self._budget -= len(block_ids)
            self._buffers[request.request_id] = len(block_ids)
            if sum(self._buffers.values()) > BLOCKS:
                raise MemoryError("no buffer is left")
        super()._plan(job_id, request, life, direction, keys, block_ids, *rest, **more)

    def _settle(self, closed: Any) -> None:
        super()._settle(closed)
        if closed.job.direction == "load":
            self._budget += len(closed.job.block_ids)

    def request_finished(self, request: Request, block_ids: list[int]) -> Finish:
        self._buffers.pop(request.request_id, None)
        return super().request_finished(request, block_ids)


class ReturnsTheBudget(AscendConnector):
    """Room to receive is given back with the load, and its memory when the request ends (B-092)."""

    scheduler_half_class = _ReturnsTheBudget


class _EvictsFromNothing(SchedulerHalf):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._buffer: OrderedDict[str, int] = OrderedDict()  # blocks, by job, the oldest first

    def _plan(
        self, job_id: str, request: Request, life: Any, direction: Direction,
        keys: Sequence[bytes], block_ids: Sequence[int], *rest: Any, **more: Any,
    ) -> None:  # fmt: skip
        if direction in ("load", "pull"):
            while sum(self._buffer.values()) + len(block_ids) > BLOCKS:
                self._buffer.popitem(last=False)
            self._buffer[job_id] = len(block_ids)
        super()._plan(job_id, request, life, direction, keys, block_ids, *rest, **more)


class EvictsFromNothing(AscendConnector):
    """A load that is larger than the buffer evicts all others, and goes on evicting (B-093)."""

    scheduler_half_class = _EvictsFromNothing


class _CopiesBeforeTheForward(SavesInStep):
    def begin_step(self, step: StepJobs) -> None:
        super().begin_step(step)
        self.wait_for_save()


class CopiesBeforeTheForward(SavesAsItGoes):
    """Blocks are copied when the step's metadata comes, before its forward fills them (B-100)."""

    worker_half_class = _CopiesBeforeTheForward


class _OneBuffer:
    """A device that is written to by way of a buffer."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._buffer: list[Shard] = []
        self._copies: list[tuple[int, ...]] = []  # device blocks, in the buffer's order

    def write(
        self, block_ids: Sequence[int], shards: Sequence[Shard], after: Mark | None = None
    ) -> None:
        self._buffer[: len(shards)] = shards
        self._copies.append(tuple(block_ids))

    def copy(self) -> None:
        """The copies that were launched run."""
        for block_ids in self._copies:
            self._device.write(block_ids, self._buffer[: len(block_ids)])
        self._copies.clear()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)


class _SharesABuffer(WorkerHalf):
    def __init__(self, settings: Any, transport: Any, device: Device, rank: int) -> None:
        self._one = _OneBuffer(device)
        super().__init__(settings, transport, self._one, rank)

    def start_load_kv(self) -> None:
        super().start_load_kv()
        self._one.copy()

    def get_finished(self, finished_req_ids: set[str]) -> Finished:
        self._one.copy()
        return super().get_finished(finished_req_ids)


class SharesABuffer(AscendConnector):
    """What is received next goes into the buffer while the copy out of it is still to run.

    B-091.
    """

    worker_half_class = _SharesABuffer
