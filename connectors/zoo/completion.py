"""Completions of the wrong request, in the wrong direction, too often or never."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from vllm.v1.request import RequestStatus

from kvconform.connectors.ascend.connector import AscendConnector
from kvconform.connectors.ascend.metadata import Direction, Job, StepJobs
from kvconform.connectors.ascend.scheduler import SchedulerHalf
from kvconform.connectors.ascend.transport import Outcome
from kvconform.connectors.ascend.worker import WorkerHalf

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.request import Request

Finish = tuple[bool, dict[str, Any] | None]
Lookup = tuple[int | None, bool]
Finished = tuple[set[str] | None, set[str] | None]


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


class _ReportsJobs(WorkerHalf):
    def get_finished(self, finished_req_ids: set[str]) -> Finished:
        super().get_finished(finished_req_ids)
        return set(self._closings) or None, None


class ReportsJobs(AscendConnector):
    """Completions name jobs, not requests (KVC-301; B-087)."""

    worker_half_class = _ReportsJobs


class _Swaps(WorkerHalf):
    def get_finished(self, finished_req_ids: set[str]) -> Finished:
        sending, recving = super().get_finished(finished_req_ids)
        return recving, sending


class Swaps(AscendConnector):
    """What was sent and what was received change places (KVC-302; B-053)."""

    worker_half_class = _Swaps


class _ReportsBothWays(WorkerHalf):
    def get_finished(self, finished_req_ids: set[str]) -> Finished:
        sending, recving = super().get_finished(finished_req_ids)
        return (sending or set()) | (recving or set()) or None, recving


class ReportsBothWays(AscendConnector):
    """One list of what is done serves for both directions (KVC-305; B-002)."""

    worker_half_class = _ReportsBothWays


class _InventsSends(SchedulerHalf):
    def request_finished(self, request: Request, block_ids: list[int]) -> Finish:
        life = self._lives[request.request_id]
        delayed, params = super().request_finished(request, block_ids)
        if not delayed:
            self._plan(self._new_id("save"), request, life, "save", (), ())
        return True, params


class InventsSends(AscendConnector):
    """Every request's end is delayed, for a send of nothing if need be (KVC-304; B-154)."""

    scheduler_half_class = _InventsSends


class _FirstRankOnly(WorkerHalf):
    def get_finished(self, finished_req_ids: set[str]) -> Finished:
        sending, recving = super().get_finished(finished_req_ids)
        return (None if self.rank else sending), recving


class FirstRankOnly(AscendConnector):
    """Saves are reported by the first rank only (KVC-402; B-184)."""

    worker_half_class = _FirstRankOnly


class _SentByTheFirst(WorkerHalf):
    def get_finished(self, finished_req_ids: set[str]) -> Finished:
        sending, recving = super().get_finished(finished_req_ids)
        more = set() if self.rank else finished_req_ids
        return (sending or set()) | more or None, recving


class SurplusReport(AscendConnector):
    """The first rank reports whoever has ended as sent, whether anybody waits for it or not."""

    worker_half_class = _SentByTheFirst


class _AlwaysSaves(SchedulerHalf):
    def request_finished(self, request: Request, block_ids: list[int]) -> Finish:
        return True, super().request_finished(request, block_ids)[1]


class AlwaysDelays(AscendConnector):
    """Asks for every request's blocks to be kept, whether or not anything is saved.

    KVC-402; B-153.
    """

    scheduler_half_class = _AlwaysSaves


class _ReportsNothingToLoad(SchedulerHalf):
    def update_state_after_alloc(
        self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int
    ) -> None:
        super().update_state_after_alloc(request, blocks, num_external_tokens)
        life = self._lives[request.request_id]
        if not num_external_tokens and not life.in_background:
            self._plan(self._new_id("load"), request, life, "load", (), ())


class ReportsNothingToLoad(AscendConnector):
    """A request that loads nothing gets a load of nothing, which is reported (KVC-302; B-058)."""

    scheduler_half_class = _ReportsNothingToLoad


class _RepeatsSends(WorkerHalf):
    before: frozenset[str] = frozenset()

    def get_finished(self, finished_req_ids: set[str]) -> Finished:
        sending, recving = super().get_finished(finished_req_ids)
        before, self.before = self.before, frozenset(sending or ())
        return set(before | self.before) or None, recving


class RepeatsSends(AscendConnector):
    """A send is reported again in the step after, as by a retry (KVC-303; B-060)."""

    worker_half_class = _RepeatsSends


class _FirstPartIsAll(WorkerHalf):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._done: set[str] = set()
        self._received: set[str] = set()

    def begin_step(self, step: StepJobs) -> None:
        super().begin_step(StepJobs(tuple(part for job in step.jobs for part in _parts(job))))

    def _close(self, outcome: Outcome) -> None:
        if outcome.transfer_id not in self._done:
            self._done.add(outcome.transfer_id)
            self._received.add(outcome.request_id)
            super()._close(outcome)

    def get_finished(self, finished_req_ids: set[str]) -> Finished:
        self._received = set()
        sending, recving = super().get_finished(finished_req_ids)
        return sending, (recving or set()) & self._received or None


def _parts(job: Job) -> list[Job]:
    """A load in the background goes in two parts."""
    half = len(job.block_ids) // 2
    if job.direction != "load" or job.wait or not half:
        return [job]
    return [
        replace(job, keys=job.keys[:half], block_ids=job.block_ids[:half]),
        replace(job, keys=job.keys[half:], block_ids=job.block_ids[half:]),
    ]


class FirstPartIsAll(AscendConnector):
    """A load goes in several parts, and is done when the first of them is (KVC-501; B-062)."""

    worker_half_class = _FirstPartIsAll


class _ReportsTheFinished(WorkerHalf):
    def get_finished(self, finished_req_ids: set[str]) -> Finished:
        sending, recving = super().get_finished(finished_req_ids)
        unsaved = finished_req_ids - self._sends.keys()
        return (sending or set()) | unsaved or None, recving


class ReportsTheFinished(AscendConnector):
    """Whoever has ended without a save is reported as sent, for the balance (KVC-305; B-154)."""

    worker_half_class = _ReportsTheFinished


class _PlansEmptySaves(SchedulerHalf):
    def _save(self, request: Request, life: Any, block_ids: list[int]) -> bool:
        if not super()._save(request, life, block_ids) and self._may_save(request, life):
            self._plan(self._new_id("save"), request, life, "save", (), ())
        return self._may_save(request, life)


class _SkipsEmptySaves(WorkerHalf):
    def begin_step(self, step: StepJobs) -> None:
        super().begin_step(
            StepJobs(tuple(j for j in step.jobs if j.direction != "save" or j.block_ids))
        )


class SkipsEmptySaves(AscendConnector):
    """Where all is stored already, the worker leaves early and says nothing (KVC-402; B-169)."""

    scheduler_half_class = _PlansEmptySaves
    worker_half_class = _SkipsEmptySaves


class _SetOfSends(WorkerHalf):
    def _start(self, *directions: Direction) -> list[Job]:
        jobs = super()._start(*directions)
        self._sends = Counter(dict.fromkeys(self._sends, 1))
        return jobs


class SetOfSends(AscendConnector):
    """Open sends are a set of requests, not a count: the first that ends ends all.

    KVC-401; B-183.
    """

    worker_half_class = _SetOfSends


class _TellsNothing(WorkerHalf):
    def get_finished(self, finished_req_ids: set[str]) -> Finished:
        return None, super().get_finished(finished_req_ids)[1]


class NoBarrier(AscendConnector):
    """No step waits for its saves any more, and blocks are given up as if each did.

    KVC-401; B-174.
    """

    scheduler_half_class = _LetsGo
    worker_half_class = _TellsNothing


class _ReadsLater(_TellsNothing):
    later: tuple[Job, ...] = ()

    def begin_step(self, step: StepJobs) -> None:
        now = tuple(job for job in step.jobs if job.direction != "save")
        now, self.later = now + self.later, tuple(j for j in step.jobs if j.direction == "save")
        super().begin_step(StepJobs(now))


class ReadsLater(AscendConnector):
    """Saves wait in a queue with the numbers of blocks that are free by then (KVC-501; B-090)."""

    scheduler_half_class = _LetsGo
    worker_half_class = _ReadsLater


class CountsOneRank(AscendConnector):
    """One completion is said to make a request complete, and each rank sends one (B-045)."""

    def get_finished_count(self) -> int | None:
        return 1
