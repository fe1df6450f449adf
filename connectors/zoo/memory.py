"""Blocks that are read and written when they belong to somebody else, or never come back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kvconform.connectors.ascend.connector import AscendConnector
from kvconform.connectors.ascend.metadata import Direction, StepJobs
from kvconform.connectors.ascend.scheduler import SchedulerHalf
from kvconform.connectors.ascend.worker import WorkerHalf

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.request import Request

Finish = tuple[bool, dict[str, Any] | None]
Lookup = tuple[int | None, bool]
Finished = tuple[set[str] | None, set[str] | None]


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


class _AbandonsTheDead(WorkerHalf):
    loading: frozenset[str] = frozenset()

    def begin_step(self, step: StepJobs) -> None:
        jobs = (job for job in step.jobs if job.direction == "load" and not job.wait)
        self.loading |= {job.request_id for job in jobs}
        super().begin_step(step)

    def get_finished(self, finished_req_ids: set[str]) -> Finished:
        sending, recving = super().get_finished(finished_req_ids)
        over = self.loading & ((recving or set()) | finished_req_ids)
        self.loading -= over
        return sending, set(over) or None


class AbandonsTheDead(AscendConnector):
    """An aborted load is reported at once, and goes on writing all the same (KVC-401; B-003)."""

    worker_half_class = _AbandonsTheDead


class _SkipsSourceOnly(SchedulerHalf):
    def _plan(
        self, job_id: str, request: Request, life: Any, direction: Direction,
        keys: Sequence[bytes], block_ids: Sequence[int], *rest: Any, **more: Any,
    ) -> None:  # fmt: skip
        if direction == "load":
            block_ids = life.blocks[: len(keys)]
        super()._plan(job_id, request, life, direction, keys, block_ids, *rest, **more)

    def update_state_after_alloc(
        self, request: Request, blocks: Any, num_external_tokens: int
    ) -> None:
        self._lives[request.request_id].blocks = blocks.get_block_ids()[0]  # type: ignore[attr-defined]
        super().update_state_after_alloc(request, blocks, num_external_tokens)


class OverwritesLocalHit(AscendConnector):
    """What was found locally is skipped among the blocks to read, but not among those to write.

    KVC-404; B-150.
    """

    scheduler_half_class = _SkipsSourceOnly


class _ForgetsTheQueue(SchedulerHalf):
    def request_finished(self, request: Request, block_ids: list[int]) -> Finish:
        if not block_ids:
            return False, None
        return super().request_finished(request, block_ids)


class ForgetsTheQueue(AscendConnector):
    """Who was never admitted had nothing, so nobody is told of its end (KVC-403; B-063)."""

    scheduler_half_class = _ForgetsTheQueue


class _SentWhenOffered(WorkerHalf):
    offered: frozenset[str] = frozenset()

    def begin_step(self, step: StepJobs) -> None:
        self.offered = frozenset(j.request_id for j in step.jobs if j.direction == "offer")
        self.told = getattr(self, "told", frozenset()) | self.offered
        super().begin_step(step)

    def get_finished(self, finished_req_ids: set[str]) -> Finished:
        sending, recving = super().get_finished(finished_req_ids)
        late = (sending or set()) - self.told
        return set(late | self.offered) or None, recving


class SentWhenOffered(AscendConnector):
    """Blocks count as sent when they are offered, not when they were read (KVC-401; B-003)."""

    worker_half_class = _SentWhenOffered


class _KeepsPins(SchedulerHalf):
    def _settle(self, closed: Any) -> None:
        if closed.job.direction == "load" and closed.failed:
            return
        super()._settle(closed)


class KeepsPins(AscendConnector):
    """What a load pinned in the store is let go when it has worked, and not when it has failed."""

    scheduler_half_class = _KeepsPins


class _RemembersTheDead(SchedulerHalf):
    def request_finished(self, request: Request, block_ids: list[int]) -> Finish:
        life = self._lives.get(request.request_id)
        answer = super().request_finished(request, block_ids)
        if life is not None and not block_ids:
            self._lives[request.request_id] = life
        return answer


class RemembersTheDead(AscendConnector):
    """Who is aborted before it was admitted is never taken off the list."""

    scheduler_half_class = _RemembersTheDead


class _SavesTheFirstTable(SchedulerHalf):
    def update_state_after_alloc(
        self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int
    ) -> None:
        tables = self.__dict__.setdefault("_tables", {})
        tables.setdefault(request.request_id, list(blocks.get_block_ids()[0]))
        super().update_state_after_alloc(request, blocks, num_external_tokens)

    def request_finished(self, request: Request, block_ids: list[int]) -> Finish:
        table = self.__dict__.get("_tables", {}).pop(request.request_id, [])
        return super().request_finished(request, [*table, *block_ids[len(table) :]])


class SavesTheFirstTable(AscendConnector):
    """The blocks of a request are written down once, and kept when it is preempted and resumed."""

    scheduler_half_class = _SavesTheFirstTable


class _SentByNobody(WorkerHalf):
    def get_finished(self, finished_req_ids: set[str]) -> Finished:
        return None, super().get_finished(finished_req_ids)[1]


class _SavesAtOnce(SchedulerHalf):
    def update_state_after_alloc(
        self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int
    ) -> None:
        super().update_state_after_alloc(request, blocks, num_external_tokens)
        self.__dict__.setdefault("_requests", {})[request.request_id] = request

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> StepJobs:
        for new in scheduler_output.scheduled_new_reqs:
            name = new.req_id
            life, request = self._lives.get(name), self._requests.pop(name)  # type: ignore[attr-defined]
            stop = new.num_computed_tokens + scheduler_output.num_scheduled_tokens[name]
            keys = self._keys(request, 0)[: stop // self.settings.block_size]
            job_id = self._new_id("save")
            granted = self.transport.reserve(job_id, keys)
            if granted and life is not None:
                self._plan(
                    job_id, request, life, "save",
                    [keys[i] for i in granted], [new.block_ids[0][i] for i in granted],
                )  # fmt: skip
        return super().build_connector_meta(scheduler_output)

    def _save(self, request: Request, life: Any, block_ids: list[int]) -> bool:
        return False  # all has been saved


class SavesAtOnce(AscendConnector):
    """Blocks are saved in the background when they are computed, and nobody waits for the end."""

    scheduler_half_class = _SavesAtOnce
    worker_half_class = _SentByNobody
