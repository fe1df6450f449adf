"""Saves that are not whole, not due, or not made; and what is not looked at when it is read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kvconform.connectors.ascend.connector import AscendConnector
from kvconform.connectors.ascend.device import Device
from kvconform.connectors.ascend.metadata import StepJobs
from kvconform.connectors.ascend.scheduler import SchedulerHalf
from kvconform.connectors.ascend.settings import Settings
from kvconform.connectors.ascend.transport import Transport
from kvconform.connectors.ascend.worker import WorkerHalf
from kvconform.connectors.zoo.memory import _SavesAtOnce, _SentByNobody

if TYPE_CHECKING:
    pass


class _CommitsWhatFailed(SchedulerHalf):
    def _settle(self, closed: Any) -> None:
        closed.failed &= closed.job.direction != "save"
        super()._settle(closed)


class CommitsWhatFailed(AscendConnector):
    """A save that has ended may be found, whether it has failed or not (KVC-502)."""

    scheduler_half_class = _CommitsWhatFailed


class _SavesFirst(_SentByNobody):
    def begin_step(self, step: StepJobs) -> None:
        super().begin_step(step)
        self._start("save")


class SavesFirst(AscendConnector):
    """What a step computes is saved when its metadata comes: before the forward.

    KVC-503; B-100.
    """

    scheduler_half_class = _SavesAtOnce
    worker_half_class = _SavesFirst


class _HalfABlock:
    """Kernels have blocks of half the size, and the connector counts as many of them."""

    def __init__(self, inner: Device) -> None:
        self.inner = inner

    def register_kv_caches(self, kv_caches: Mapping[str, Any], num_blocks: int | None) -> None:
        # Heads, tokens, K and V.
        halves = {name: cache.chunk(2, dim=-2)[0] for name, cache in kv_caches.items()}
        self.inner.register_kv_caches(halves, num_blocks)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class _CopiesHalf(WorkerHalf):
    def __init__(self, settings: Settings, transport: Transport, device: Device, rank: int) -> None:
        halved: Any = _HalfABlock(device)
        super().__init__(settings, transport, halved, rank)


class CopiesHalf(AscendConnector):
    """The scheduler's block is taken for the kernel's, of which it has two (KVC-501; B-074)."""

    worker_half_class = _CopiesHalf


class _TrustsItsMemory(SchedulerHalf):
    def __init__(self, settings: Settings, transport: Transport) -> None:
        super().__init__(settings, transport)
        outside: Any = transport
        outside.store.verify = False


class TrustsItsMemory(AscendConnector):
    """Checksums are kept, and never compared (KVC-605)."""

    scheduler_half_class = _TrustsItsMemory
