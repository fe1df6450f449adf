"""What is kept for another engine, and for how long."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, ClassVar

from vllm.v1.request import RequestStatus

from kvconform.connectors.ascend.connector import AscendConnector
from kvconform.connectors.ascend.metadata import Direction, Job, StepJobs
from kvconform.connectors.ascend.offers import Offers
from kvconform.connectors.ascend.planes import KVCache
from kvconform.connectors.ascend.scheduler import SchedulerHalf
from kvconform.connectors.ascend.transport import Outcome
from kvconform.connectors.ascend.worker import WorkerHalf

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.request import Request

    from kvconform.connectors.ascend.store import Shard

Finished = tuple[set[str] | None, set[str] | None]


class _Offering(WorkerHalf):
    offers: ClassVar[type[Offers]]

    def register_kv_caches(self, kv_caches: dict[str, KVCache]) -> None:
        super().register_kv_caches(kv_caches)
        transport: Any = self.transport
        offers = self.offers(self.settings.engine_id, self.rank, self.device)
        transport._exchange._offers = offers


class _ExpireUnheard(Offers):
    def _expire(self) -> None:
        now = time.monotonic()
        for offer_id in [o for o, deadline in self._deadlines.items() if deadline <= now]:
            del self._deadlines[offer_id]


class _ExpiresUnheard(_Offering):
    offers = _ExpireUnheard


class ExpiresUnheard(AscendConnector):
    """An offer whose lease is over is struck from the list, and its blocks stay kept (B-065)."""

    worker_half_class = _ExpiresUnheard


class _ForgetEarlyReaders(Offers):
    def close(self, offer_id: str) -> None:
        with self._lock:
            if self._deadlines.pop(offer_id, None) is not None:
                self._ended.append(offer_id)


class _ForgetsEarlyReaders(_Offering):
    offers = _ForgetEarlyReaders


class ForgetsEarlyReaders(AscendConnector):
    """A reader may be done before the offer's clock starts; that is not remembered (B-066)."""

    worker_half_class = _ForgetsEarlyReaders


class _ServeTheExpired(Offers):
    def read(self, offer_id: str, block_ids: Sequence[int]) -> list[Shard] | None:
        return self._device.read(block_ids)


class _ServesTheExpired(_Offering):
    offers = _ServeTheExpired


class ServesTheExpired(AscendConnector):
    """Whoever comes after the lease is given what the blocks hold by then (B-078)."""

    worker_half_class = _ServesTheExpired


class _TimesOutAnyway(WorkerHalf):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._timers: dict[str, float] = {}

    def _start(self, *directions: Direction) -> list[Job]:
        jobs = super()._start(*directions)
        end = time.monotonic() + self.lease_seconds
        self._timers |= {j.request_id: end for j in jobs if j.direction == "offer"}
        return jobs

    def get_finished(self, finished_req_ids: set[str]) -> Finished:
        sending, recving = super().get_finished(finished_req_ids)
        now = time.monotonic()
        over = {request_id for request_id, end in self._timers.items() if end <= now}
        for request_id in over:
            del self._timers[request_id]
        return (sending or set()) | over or None, recving


class TimesOutAnyway(AscendConnector):
    """A request is released when its KV was read, and again when its time is over (B-165)."""

    worker_half_class = _TimesOutAnyway


class _WaitsForTheProducer(WorkerHalf):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._dead: set[str] = set()
        self._silent: set[str] = set()

    def _close(self, outcome: Outcome) -> None:
        if outcome.direction == "pull" and outcome.failed_block_ids:
            self._silent.add(outcome.request_id)
        super()._close(outcome)

    def get_finished(self, finished_req_ids: set[str]) -> Finished:
        self._dead |= finished_req_ids
        sending, recving = super().get_finished(finished_req_ids)
        return sending, (recving or set()) - (self._dead & self._silent) or None


class WaitsForTheProducer(AscendConnector):
    """An aborted load ends with the producer's word alone, and some producers stay silent.

    B-005.
    """

    worker_half_class = _WaitsForTheProducer


class _OneRankIsRead(WorkerHalf):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._unread: set[str] = set()

    def begin_step(self, step: StepJobs) -> None:
        if self.rank:
            self._unread |= {j.request_id for j in step.jobs if j.direction == "offer"}
        super().begin_step(step)

    def get_finished(self, finished_req_ids: set[str]) -> Finished:
        sending, recving = super().get_finished(finished_req_ids)
        return (sending or set()) - self._unread or None, recving


class OneRankIsRead(AscendConnector):
    """Only the first rank of a producer reports what was read, and all are waited for (B-044)."""

    worker_half_class = _OneRankIsRead


class _FiltersSends(WorkerHalf):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._incoming: set[str] = set()

    def begin_step(self, step: StepJobs) -> None:
        self._incoming |= {j.request_id for j in step.jobs if j.direction in ("load", "pull")}
        super().begin_step(step)

    def get_finished(self, finished_req_ids: set[str]) -> Finished:
        sending, recving = super().get_finished(finished_req_ids)
        return (sending or set()) & self._incoming or None, recving


class FiltersSends(AscendConnector):
    """Sends are looked up among the requests that are received, and dropped if not there (B-079).

    What a producer sends never is.
    """

    worker_half_class = _FiltersSends


class _AddressesTheEngine(SchedulerHalf):
    def _release(self, request: Request, life: Any, remote: dict[str, Any]) -> None:
        if not RequestStatus.is_finished(request.status):  # it is admitted, and needs no block
            remote = remote | {"remote_offer_id": remote["remote_engine_id"]}
        super()._release(request, life, remote)


class AddressesTheEngine(AscendConnector):
    """Where nothing is to be pulled, the engine's name stands in the message for the offer's.

    B-083.
    """

    scheduler_half_class = _AddressesTheEngine


class _DropsEmptyJobs(SchedulerHalf):
    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> StepJobs:
        step = super().build_connector_meta(scheduler_output)
        return StepJobs(tuple(job for job in step.jobs if job.block_ids))


class DropsEmptyJobs(AscendConnector):
    """Jobs without blocks are left out of the metadata, and with them each release (B-084)."""

    scheduler_half_class = _DropsEmptyJobs


class _OnlyAtTheLimit(SchedulerHalf):
    def _offer(self, request: Request, life: Any, block_ids: list[int]) -> dict[str, Any] | None:
        if request.status != RequestStatus.FINISHED_LENGTH_CAPPED:
            return None
        return super()._offer(request, life, block_ids)


class OnlyAtTheLimit(AscendConnector):
    """A prefill that a stop token ends is not handed over, only one that is cut off (B-085)."""

    scheduler_half_class = _OnlyAtTheLimit


class _ReleasesOwnId(SchedulerHalf):
    def _release(self, request: Request, life: Any, remote: dict[str, Any]) -> None:
        super()._release(request, life, remote | {"remote_offer_id": request.request_id})


class ReleasesOwnId(AscendConnector):
    """A release names the request as it is called here, not as it is called there (B-088)."""

    scheduler_half_class = _ReleasesOwnId
