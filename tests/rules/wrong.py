"""Wrong connectors, one for each rule that a run can break: the reference connector, one mistake.

They are small on purpose, and wrong in what they do; what vLLM makes of it is vLLM's own doing.
Those from a defect that reached users live in the zoo.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from vllm.v1.request import RequestStatus

from kvconform.connectors.ascend.connector import AscendConnector
from kvconform.connectors.ascend.metadata import StepJobs
from kvconform.connectors.ascend.scheduler import SchedulerHalf
from kvconform.connectors.ascend.worker import WorkerHalf
from kvconform.connectors.zoo.double_completion import DoubleCompletion
from kvconform.connectors.zoo.late_failure import LateFailure
from kvconform.connectors.zoo.leak_on_abort import LeakOnAbort
from kvconform.connectors.zoo.lease_ignored import LeaseIgnored
from kvconform.connectors.zoo.wrong_block import WrongBlock

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.request import Request

Finish = tuple[bool, dict[str, Any] | None]
Lookup = tuple[int | None, bool]
Finished = tuple[set[str] | None, set[str] | None]


# -- 0xx shape ------------------------------------------------------------------------------------


class CancelsOnTheWorker(AscendConnector):
    """An abort is passed on to the worker half, which the scheduler's process does not have.

    KVC-010; B-156.
    """

    def request_finished(self, request: Request, block_ids: list[int]) -> Finish:
        if request.status == RequestStatus.FINISHED_ABORTED:
            self.worker.transport.unpin(request.request_id)
        return super().request_finished(request, block_ids)


class _SaysNothing(WorkerHalf):
    def get_block_ids_with_load_errors(self) -> set[int]:
        return super().get_block_ids_with_load_errors() or None  # type: ignore[return-value]


class NoErrorsIsNone(AscendConnector):
    """Answers None when no load failed, where vLLM wants an empty set.

    KVC-011.
    """

    worker_half_class = _SaysNothing


# -- 1xx lookup -----------------------------------------------------------------------------------


class _DoesNotClamp(SchedulerHalf):
    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> Lookup:
        answer, in_background = super().get_num_new_matched_tokens(request, num_computed_tokens)
        if answer == 0:
            found = self.transport.lookup(self._keys(request, 0)) or 0
            return found * self.settings.block_size - num_computed_tokens, False
        return answer, in_background


class NegativePromise(AscendConnector):
    """Subtracts the local tokens from what the store holds, without ``max(0, …)``.

    KVC-101; B-041.
    """

    scheduler_half_class = _DoesNotClamp


class _LeavesNothing(SchedulerHalf):
    def _promise(self, request: Request, local: int, found: int) -> tuple[int, bool]:
        return found, found >= self.settings.async_min_blocks


class WholePrompt(AscendConnector):
    """A synchronous load may reach the prompt's end: no token is left to compute.

    KVC-102; B-042, B-196.
    """

    scheduler_half_class = _LeavesNothing


class _AlwaysInBackground(SchedulerHalf):
    def _promise(self, request: Request, local: int, found: int) -> tuple[int, bool]:
        return found, True


class NothingInBackground(AscendConnector):
    """Loads in the background whatever the store says, even when it says that there is nothing.

    KVC-103; B-144.
    """

    scheduler_half_class = _AlwaysInBackground


class _LeastOfAllRanks(SchedulerHalf):
    def _promise(self, request: Request, local: int, found: int) -> tuple[int, bool]:
        ranks = np.full(self.settings.world_size, found)
        return super()._promise(request, local, ranks.min())


class NumpyPromise(AscendConnector):
    """The least count of all ranks stays what numpy made it.

    KVC-104.
    """

    scheduler_half_class = _LeastOfAllRanks


class _AnswersOnce(SchedulerHalf):
    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> Lookup:
        answer = super().get_num_new_matched_tokens(request, num_computed_tokens)
        taken = self.__dict__.setdefault("_taken", set())
        if request.request_id in taken:
            return 0, False
        if answer[0]:
            taken.add(request.request_id)
        return answer


class ConsumesInLookup(AscendConnector):
    """A positive answer is taken for a reservation, and is not given a second time.

    KVC-105; B-204.
    """

    scheduler_half_class = _AnswersOnce


class _NeverAsksAgain(SchedulerHalf):
    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> Lookup:
        pending = self.__dict__.setdefault("_pending", set())
        if request.request_id in pending:
            return None, False
        answer = super().get_num_new_matched_tokens(request, num_computed_tokens)
        if answer[0] is None:
            pending.add(request.request_id)
        return answer


class PendingForEver(AscendConnector):
    """A query that the store left unanswered stays pending: there is no deadline for it.

    KVC-106; B-118.
    """

    scheduler_half_class = _NeverAsksAgain


# -- 2xx metadata ---------------------------------------------------------------------------------


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


# -- 3xx completion -------------------------------------------------------------------------------


class _PlansCleanUp(SchedulerHalf):
    def request_finished(self, request: Request, block_ids: list[int]) -> Finish:
        life = self._lives.get(request.request_id)
        if life is not None and request.status == RequestStatus.FINISHED_ABORTED:
            self._plan(self._new_id("load"), request, life, "load", (), ())
        return super().request_finished(request, block_ids)


class ReportsCleanUp(AscendConnector):
    """The clean-up after an abort is a load of nothing, and is reported like any other load.

    KVC-301; B-129.
    """

    scheduler_half_class = _PlansCleanUp


class _ReportsWaitedFor(WorkerHalf):
    def start_load_kv(self) -> None:
        self.received = {j.request_id for j in self._to_start if j.direction == "load" and j.wait}
        super().start_load_kv()

    def get_finished(self, finished_req_ids: set[str]) -> Finished:
        sending, recving = super().get_finished(finished_req_ids)
        return sending, (recving or set()) | self.received or None


class ReportsSynchronousLoads(AscendConnector):
    """A load that was waited for is reported as received, like one in the background.

    KVC-302; B-142.
    """

    worker_half_class = _ReportsWaitedFor


class _LetsGo(SchedulerHalf):
    def request_finished(self, request: Request, block_ids: list[int]) -> Finish:
        super().request_finished(request, block_ids)
        return False, None


class SavesWithoutDelay(AscendConnector):
    """The save of a finished request is planned, and its blocks are given up all the same.

    KVC-305; B-001.
    """

    scheduler_half_class = _LetsGo


# -- 4xx memory -----------------------------------------------------------------------------------


class _SentWhenSubmitted(WorkerHalf):
    def begin_step(self, step: StepJobs) -> None:
        self.sent = {job.request_id for job in step.jobs if job.direction == "save"}
        super().begin_step(step)

    def get_finished(self, finished_req_ids: set[str]) -> Finished:
        return self.sent or None, super().get_finished(finished_req_ids)[1]


class SentTooSoon(AscendConnector):
    """A save counts as sent when it has been submitted, not when it has ended.

    KVC-401; B-183.
    """

    worker_half_class = _SentWhenSubmitted


class _AlwaysSaves(SchedulerHalf):
    def request_finished(self, request: Request, block_ids: list[int]) -> Finish:
        return True, super().request_finished(request, block_ids)[1]


class AlwaysDelays(AscendConnector):
    """Asks for every request's blocks to be kept, whether or not anything is saved.

    KVC-402; B-153.
    """

    scheduler_half_class = _AlwaysSaves


class _IgnoresLocalHit(SchedulerHalf):
    def update_state_after_alloc(
        self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int
    ) -> None:
        life = self._lives[request.request_id]
        local, life.local_blocks = life.local_blocks, 0
        more = local * self.settings.block_size if num_external_tokens else 0
        super().update_state_after_alloc(request, blocks, num_external_tokens + more)


class LoadsFromTheStart(AscendConnector):
    """Loads from the prompt's start, into blocks too that were found locally and are shared.

    KVC-404; B-150.
    """

    scheduler_half_class = _IgnoresLocalHit


# -- 5xx content ----------------------------------------------------------------------------------


class _HashesTokens(SchedulerHalf):
    def _keys(self, request: Request, start: int) -> list[bytes]:
        size = self.settings.block_size
        stops = range((start + 1) * size, request.num_tokens + 1, size)
        tokens = np.array(request.all_token_ids)
        return [hashlib.sha256(tokens[:stop].tobytes()).digest() for stop in stops]


class KeysOfTokens(AscendConnector):
    """Keys are hashes of the tokens, without the salt.

    KVC-504; B-096.
    """

    scheduler_half_class = _HashesTokens


# -- 6xx failure ----------------------------------------------------------------------------------


class _NeverDrains(WorkerHalf):
    def get_block_ids_with_load_errors(self) -> set[int]:
        return set(self._load_errors)


class RepeatsFailures(AscendConnector):
    """The set of failed blocks is read, and not emptied.

    KVC-602.
    """

    worker_half_class = _NeverDrains


# -- 7xx progress ---------------------------------------------------------------------------------


class _PollsWhenBusy(WorkerHalf):
    def begin_step(self, step: StepJobs) -> None:
        self.busy = bool(step.jobs)
        super().begin_step(step)

    def get_finished(self, finished_req_ids: set[str]) -> Finished:
        return super().get_finished(finished_req_ids) if self.busy else (None, None)


class PollsOnlyWhenBusy(AscendConnector):
    """Transfers are polled only in steps that start some: the last ones are never heard of.

    KVC-701; B-112.
    """

    worker_half_class = _PollsWhenBusy


class _TellsNobody(SchedulerHalf):
    def update_state_after_alloc(
        self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int
    ) -> None:
        if not num_external_tokens:
            self._lives[request.request_id].remote_is_done = True  # nothing to do, it thinks
        super().update_state_after_alloc(request, blocks, num_external_tokens)


class TellsNobody(AscendConnector):
    """What is found locally needs nothing from the engine that prefilled, which never hears it.

    KVC-403; B-082.
    """

    scheduler_half_class = _TellsNobody


# -- 8xx composition ------------------------------------------------------------------------------


class ResetInNameOnly(AscendConnector):
    """The store is somebody else's: a reset does nothing, and says that all is well.

    KVC-801; B-050.
    """

    def reset_cache(self) -> bool:
        return True


class _OffersASet(SchedulerHalf):
    def _offer(self, *args: Any) -> dict[str, Any] | None:
        params = super()._offer(*args)
        return params and params | {"ranks": {0, 1}}


class OffersASet(AscendConnector):
    """What is handed to the other engine holds a set.

    KVC-204.
    """

    scheduler_half_class = _OffersASet


WRONG: dict[str, type[AscendConnector]] = {
    "KVC-010": CancelsOnTheWorker,
    "KVC-011": NoErrorsIsNone,
    "KVC-101": NegativePromise,
    "KVC-102": WholePrompt,
    "KVC-103": NothingInBackground,
    "KVC-104": NumpyPromise,
    "KVC-105": ConsumesInLookup,
    "KVC-106": PendingForEver,
    "KVC-201": UnpicklableMetadata,
    "KVC-202": LiveMetadata,
    "KVC-203": ChangesOutput,
    "KVC-204": OffersASet,
    "KVC-301": ReportsCleanUp,
    "KVC-302": ReportsSynchronousLoads,
    "KVC-303": DoubleCompletion,
    "KVC-304": LeakOnAbort,
    "KVC-305": SavesWithoutDelay,
    "KVC-401": SentTooSoon,
    "KVC-402": AlwaysDelays,
    "KVC-403": TellsNobody,
    "KVC-404": LoadsFromTheStart,
    "KVC-501": WrongBlock,
    "KVC-504": KeysOfTokens,
    "KVC-601": LateFailure,
    "KVC-602": RepeatsFailures,
    "KVC-603": LeaseIgnored,
    "KVC-701": PollsOnlyWhenBusy,
    "KVC-801": ResetInNameOnly,
}
"""Rule id to the connector that breaks it."""
