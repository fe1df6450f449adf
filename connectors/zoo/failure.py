"""Failures that nobody hears of, and loads that never end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvconform.connectors.ascend.connector import AscendConnector
from kvconform.connectors.ascend.metadata import StepJobs
from kvconform.connectors.ascend.transport import Outcome
from kvconform.connectors.ascend.worker import WorkerHalf

if TYPE_CHECKING:
    pass

Finish = tuple[bool, dict[str, Any] | None]
Lookup = tuple[int | None, bool]
Finished = tuple[set[str] | None, set[str] | None]


class _NeverDrains(WorkerHalf):
    def get_block_ids_with_load_errors(self) -> set[int]:
        return set(self._load_errors)


class RepeatsFailures(AscendConnector):
    """The set of failed blocks is read, and not emptied.

    KVC-602.
    """

    worker_half_class = _NeverDrains


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
