"""Completions of the wrong request, in the wrong direction, too often or never."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm.v1.request import RequestStatus

from kvconform.connectors.ascend.connector import AscendConnector
from kvconform.connectors.ascend.scheduler import SchedulerHalf
from kvconform.connectors.ascend.worker import WorkerHalf

if TYPE_CHECKING:
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
