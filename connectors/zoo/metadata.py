"""What crosses between the halves, and between engines, and should not."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kvconform.connectors.ascend.connector import AscendConnector
from kvconform.connectors.ascend.metadata import StepJobs
from kvconform.connectors.ascend.scheduler import SchedulerHalf

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.request import Request

Finish = tuple[bool, dict[str, Any] | None]
Lookup = tuple[int | None, bool]
Finished = tuple[set[str] | None, set[str] | None]


@dataclass(frozen=True)
class _Awaitable(StepJobs):
    loaded: threading.Event = field(default_factory=threading.Event)


class _SendsEvents(SchedulerHalf):
    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> StepJobs:
        step = super().build_connector_meta(scheduler_output)
        loads = any(job.direction == "load" for job in step.jobs)
        return _Awaitable(step.jobs) if loads else step


class UnpicklableMetadata(AscendConnector):
    """The metadata of a step with loads holds an event to wait for: a lock, which does not pickle.

    KVC-201.
    """

    scheduler_half_class = _SendsEvents


@dataclass(frozen=True)
class _WithTable(StepJobs):
    table: Mapping[str, Any] = field(default_factory=dict)


class _SharesTable(SchedulerHalf):
    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> StepJobs:
        return _WithTable(super().build_connector_meta(scheduler_output).jobs, self._open)


class LiveMetadata(AscendConnector):
    """The metadata holds the scheduler half's own table of open jobs, not a copy.

    KVC-202; B-202.
    """

    scheduler_half_class = _SharesTable


class _TakesFinished(SchedulerHalf):
    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> StepJobs:
        saved = {job.request_id for job in self._outbox if job.direction == "save"}
        scheduler_output.finished_req_ids -= saved
        return super().build_connector_meta(scheduler_output)


class ChangesOutput(AscendConnector):
    """Takes requests that are being saved out of the finished ones, so that workers keep them.

    KVC-203.
    """

    scheduler_half_class = _TakesFinished


class _SendsNothing(SchedulerHalf):
    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> StepJobs:
        step = super().build_connector_meta(scheduler_output)
        return step if step.jobs else None  # type: ignore[return-value]


class SendsNothing(AscendConnector):
    """A step without jobs gets no metadata (KVC-201)."""

    scheduler_half_class = _SendsNothing


class _OffersASet(SchedulerHalf):
    def _offer(self, *args: Any) -> dict[str, Any] | None:
        params = super()._offer(*args)
        return params and params | {"ranks": {0, 1}}


class OffersASet(AscendConnector):
    """What is handed to the other engine holds a set.

    KVC-204.
    """

    scheduler_half_class = _OffersASet


class _PlansAgain(SchedulerHalf):
    def update_state_after_alloc(
        self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int
    ) -> None:
        planned = self.__dict__.setdefault("_planned", {})
        more = planned.pop(request.request_id, 0)
        if num_external_tokens and self._lives[request.request_id].in_background:
            planned[request.request_id] = num_external_tokens
        super().update_state_after_alloc(request, blocks, num_external_tokens or more)


class PlansAgain(AscendConnector):
    """The call after a load looks like the one before it, and starts the load once more."""

    scheduler_half_class = _PlansAgain
