"""What preemption takes away, while somebody still needs it.

``SavesBehindPlan`` and ``SavesBehind`` are right: blocks are saved as they fill, in the background,
and the workers end the open saves before the blocks of preempted requests change hands.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from kvconform.connectors.ascend.connector import AscendConnector
from kvconform.connectors.ascend.metadata import Direction, Job, StepJobs
from kvconform.connectors.ascend.scheduler import SchedulerHalf
from kvconform.connectors.ascend.transport import Outcome
from kvconform.connectors.ascend.worker import WorkerHalf
from kvconform.connectors.zoo.books import Bookkeeper, resumed

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.request import Request

Finish = tuple[bool, dict[str, Any] | None]
Finished = tuple[set[str] | None, set[str] | None]


class SavesBehindPlan(Bookkeeper):
    """Plans saves that nobody waits for; one without keys marks the request's end (right)."""

    wait = False

    def _saves_of(self, life: Any) -> bool:
        return any(o.life is life and o.job.direction == "save" for o in self._open.values())

    def _save(self, request: Request, life: Any, block_ids: list[int]) -> bool:
        if not self._saves_of(life):
            return False
        self._plan(self._new_id("save"), request, life, "save", (), ())
        return True


class SavesBehind(WorkerHalf):
    """Saves in the background, and waits for saves where blocks are taken away (right)."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._saving: dict[str, str] = {}  # request of each open job
        self._ending: set[str] = set()
        self._flushed: set[str] = set()

    def _start(self, *directions: Direction) -> list[Job]:
        jobs = super()._start(*directions)
        self._saving |= {j.job_id: j.request_id for j in jobs if j.direction == "save"}
        self._ending |= {
            j.request_id
            for j in jobs
            if j.direction == "offer" or (j.direction == "save" and not j.keys)
        }
        return jobs

    def _close(self, outcome: Outcome) -> None:
        super()._close(outcome)
        self._saving.pop(outcome.transfer_id, None)

    def get_finished(self, finished_req_ids: set[str]) -> Finished:
        sending, recving = super().get_finished(finished_req_ids)
        ended = ((sending or set()) | self._flushed) & self._ending
        done = {request_id for request_id in ended if not self._sends[request_id]}
        self._ending -= done
        self._flushed = set()
        return done or None, recving

    def handle_preemptions(self, metadata_or_request_ids: Any) -> None:
        for job_id, request_id in list(self._saving.items()):
            self._close(self.transport.wait(job_id))
            self._sends[request_id] -= 1
            if not self._sends[request_id]:
                del self._sends[request_id]
                self._flushed.add(request_id)


class SavesInBackground(AscendConnector):
    """Right: each block is saved once it is full, and nobody waits."""

    scheduler_half_class: ClassVar[type[SchedulerHalf]] = SavesBehindPlan
    worker_half_class: ClassVar[type[WorkerHalf]] = SavesBehind


class _IgnoresPreemption(SavesBehind):
    def handle_preemptions(self, metadata_or_request_ids: Any) -> None:
        pass


class IgnoresPreemption(SavesInBackground):
    """Open saves of a preempted request go on, though its blocks are somebody else's (B-099)."""

    worker_half_class = _IgnoresPreemption


class _FlushesLate(SavesBehind):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._noted: set[str] = set()

    def handle_preemptions(self, metadata_or_request_ids: Any) -> None:
        noted, self._noted = self._noted, set(self._saving)
        young = {job: name for job, name in self._saving.items() if job not in noted}
        self._saving = {job: name for job, name in self._saving.items() if job in noted}
        super().handle_preemptions(metadata_or_request_ids)
        self._saving |= young


class FlushesLate(SavesInBackground):
    """Saves are ended a step after the one that takes the blocks of the preempted (B-137)."""

    worker_half_class = _FlushesLate


class _AssertsNoSaves(SavesBehindPlan):
    def update_state_after_alloc(
        self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int
    ) -> None:
        if num_external_tokens:
            assert not self._saves_of(self._lives[request.request_id]), "it is still being saved"
        super().update_state_after_alloc(request, blocks, num_external_tokens)


class AssertsNoSaves(SavesInBackground):
    """Promises a load to a request that is still being saved, and asserts that there is none.

    B-106.
    """

    scheduler_half_class = _AssertsNoSaves


class _ReportsTheFinished(SavesBehind):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._saved: set[str] = set()
        self._dead: set[str] = set()

    def _start(self, *directions: Direction) -> list[Job]:
        jobs = super()._start(*directions)
        self._saved |= {j.request_id for j in jobs if j.direction in ("save", "offer")}
        return jobs

    def get_finished(self, finished_req_ids: set[str]) -> Finished:
        _, recving = super().get_finished(finished_req_ids)
        self._dead |= finished_req_ids & self._saved
        done = {request_id for request_id in self._dead if not self._sends[request_id]}
        self._dead -= done
        self._saved -= done
        return done or None, recving


class TwoSignals(SavesInBackground):
    """Blocks are kept while jobs are open, and sends are reported when the worker has heard.

    Jobs that were closed before the end make a report that nobody waits for (B-113).
    """

    worker_half_class = _ReportsTheFinished


class _PushesOn(SavesBehindPlan):
    backlog: tuple[Job, ...] = ()

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> StepJobs:
        jobs = super().build_connector_meta(scheduler_output).jobs
        late = tuple(job for job in jobs if job.direction == "save" and job.keys)
        now, self.backlog = self.backlog, late
        return StepJobs(now + tuple(job for job in jobs if job not in late))


class PushesOn(SavesInBackground):
    """Blocks wait a step to be pushed, and go on waiting when their request is preempted (B-189).

    By then they are somebody else's.
    """

    scheduler_half_class = _PushesOn


class _DropsPreempted(SchedulerHalf):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._admitted: set[str] = set()
        self._trackers: set[str] = set()

    def update_state_after_alloc(
        self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int
    ) -> None:
        super().update_state_after_alloc(request, blocks, num_external_tokens)
        self._admitted.add(request.request_id)
        self._trackers.add(request.request_id)

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> StepJobs:
        gone = set(scheduler_output.preempted_req_ids or ())
        self._trackers -= gone - scheduler_output.num_scheduled_tokens.keys()
        return super().build_connector_meta(scheduler_output)

    def request_finished(self, request: Request, block_ids: list[int]) -> Finish:
        if request.request_id in self._admitted:
            assert request.request_id in self._trackers, "it has no tracker"
            self._trackers.remove(request.request_id)
            self._admitted.remove(request.request_id)
        return super().request_finished(request, block_ids)


class DropsPreempted(AscendConnector):
    """A preempted request loses its tracker, which its end asks for (B-130)."""

    scheduler_half_class = _DropsPreempted


class _PullsAgain(SchedulerHalf):
    def update_state_after_alloc(
        self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int
    ) -> None:
        super().update_state_after_alloc(request, blocks, num_external_tokens)
        life = self._lives[request.request_id]
        if num_external_tokens and life.pulls:
            life.remote_is_done = False


class PullsAgain(AscendConnector):
    """That a request's KV has been pulled is not remembered: once preempted, it asks again.

    B-143.
    """

    scheduler_half_class = _PullsAgain


class _TakesTheLarger(SchedulerHalf):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._had: dict[str, int] = {}

    def update_state_after_alloc(
        self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int
    ) -> None:
        life = self._lives[request.request_id]
        if num_external_tokens:
            count = num_external_tokens // self.settings.block_size
            life.local_blocks = max(life.local_blocks, self._had.get(request.request_id, 0))
            self._had[request.request_id] = life.local_blocks + count
        super().update_state_after_alloc(request, blocks, num_external_tokens)


class TakesTheLarger(AscendConnector):
    """A load starts behind what the request had cached when it was last admitted, if that is more.

    B-158.
    """

    scheduler_half_class = _TakesTheLarger


class _NewRequestsOnly(SchedulerHalf):
    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> StepJobs:
        new = {request.req_id for request in scheduler_output.scheduled_new_reqs}
        step = super().build_connector_meta(scheduler_output)
        return StepJobs(tuple(j for j in step.jobs if not j.wait or j.request_id in new))


class NewRequestsOnly(AscendConnector):
    """Only new requests are loaded for, not those that are resumed (B-159)."""

    scheduler_half_class = _NewRequestsOnly


class _StopsAtRunning(SchedulerHalf):
    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> StepJobs:
        back = resumed(scheduler_output)
        cached = scheduler_output.scheduled_cached_reqs.req_ids
        running = next((i for i, r in enumerate(cached) if r not in back), len(cached))
        unseen = set(cached[running:])
        step = super().build_connector_meta(scheduler_output)
        return StepJobs(tuple(j for j in step.jobs if not j.wait or j.request_id not in unseen))


class StopsAtRunning(AscendConnector):
    """The search for resumed requests ends at the first one that was running all along (B-094)."""

    scheduler_half_class = _StopsAtRunning
