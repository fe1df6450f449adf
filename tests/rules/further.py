"""More wrong connectors: other ways to break the rules, which other evidence brings to light."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kvconform.connectors.ascend.connector import AscendConnector
from kvconform.connectors.ascend.metadata import Direction, StepJobs
from kvconform.connectors.ascend.scheduler import SchedulerHalf
from kvconform.connectors.ascend.transport import Outcome
from kvconform.connectors.ascend.worker import WorkerHalf
from tests.rules.wrong import SavesWithoutDelay

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.request import Request

Finish = tuple[bool, dict[str, Any] | None]
Finished = tuple[set[str] | None, set[str] | None]


class _RaisesOnFailure(WorkerHalf):
    def _close(self, outcome: Outcome) -> None:
        if outcome.failed_block_ids:
            raise RuntimeError(f"{outcome.transfer_id} failed")
        super()._close(outcome)


class RaisesOnFailure(AscendConnector):
    """A transfer that failed raises when it is polled, and nobody catches it (KVC-010; B-069)."""

    worker_half_class = _RaisesOnFailure


class AnswersBool(AscendConnector):
    """Whether blocks must live is answered bare, without the parameters (KVC-011; B-173)."""

    def request_finished(self, request: Request, block_ids: list[int]) -> Finish:
        return super().request_finished(request, block_ids)[0]  # type: ignore[return-value]


class _CountsTheTail(SchedulerHalf):
    def _promise(self, request: Request, local: int, found: int) -> tuple[int, bool]:
        whole = (local + found) == request.num_tokens // self.settings.block_size
        return super()._promise(request, local, found + (1 if found and whole else 0))


class CountsTheTail(AscendConnector):
    """The prompt's begun last block counts as a whole one (KVC-102; B-186)."""

    scheduler_half_class = _CountsTheTail


class _SendsNothing(SchedulerHalf):
    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> StepJobs:
        step = super().build_connector_meta(scheduler_output)
        return step if step.jobs else None  # type: ignore[return-value]


class SendsNothing(AscendConnector):
    """A step without jobs gets no metadata (KVC-201)."""

    scheduler_half_class = _SendsNothing


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


class _FirstRankOnly(WorkerHalf):
    def get_finished(self, finished_req_ids: set[str]) -> Finished:
        sending, recving = super().get_finished(finished_req_ids)
        return (None if self.rank else sending), recving


class FirstRankOnly(AscendConnector):
    """Saves are reported by the first rank only (KVC-402; B-184)."""

    worker_half_class = _FirstRankOnly


class SurplusReport(SavesWithoutDelay):
    """A save that nobody waits for is reported, by the first rank only (KVC-402; B-058)."""

    worker_half_class = _FirstRankOnly


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


class _DoesNotWait(WorkerHalf):
    def start_load_kv(self) -> None:
        for job in self._start("load"):
            if job.wait:
                self.unreported = self.unreported | {job.request_id}

    unreported: frozenset[str] = frozenset()

    def get_finished(self, finished_req_ids: set[str]) -> Finished:
        sending, recving = super().get_finished(finished_req_ids)
        return sending, (recving or set()) - self.unreported or None


class DoesNotWait(AscendConnector):
    """A synchronous load is started, and not waited for (KVC-501; B-203)."""

    worker_half_class = _DoesNotWait


class _SavesTheLastToken(SchedulerHalf):
    def _final_blocks(self, request: Request, block_ids: list[int]) -> int:
        return min(len(block_ids), len(request.block_hashes))


class SavesTheLastToken(AscendConnector):
    """The token sampled last counts as computed, and its block is saved (KVC-501; B-163)."""

    scheduler_half_class = _SavesTheLastToken


class _KeepsErrorsToItself(WorkerHalf):
    def get_block_ids_with_load_errors(self) -> set[int]:
        return set()


class SwallowsFailures(AscendConnector):
    """Load errors are collected, and nobody is told (KVC-601; B-134)."""

    worker_half_class = _KeepsErrorsToItself


class _DropsFailures(WorkerHalf):
    def _close(self, outcome: Outcome) -> None:
        super()._close(outcome)
        self.dropped = outcome.request_id if outcome.failed_block_ids else None

    dropped: str | None = None

    def get_finished(self, finished_req_ids: set[str]) -> Finished:
        sending, recving = super().get_finished(finished_req_ids)
        return sending, (recving or set()) - {self.dropped} or None


class DropsFailures(AscendConnector):
    """A failed load is reported block by block, and never as completed (KVC-701; B-021)."""

    worker_half_class = _DropsFailures


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
