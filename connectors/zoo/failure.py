"""Failures that nobody hears of, and loads that never end."""

from __future__ import annotations

import logging
from typing import Any

from kvconform.connectors.ascend.connector import AscendConnector
from kvconform.connectors.ascend.metadata import Job, StepJobs
from kvconform.connectors.ascend.transport import Outcome
from kvconform.connectors.ascend.worker import WorkerHalf

_logger = logging.getLogger(__name__)

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


class _DropsTheRecord(WorkerHalf):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._records: dict[str, Job] = {}

    def begin_step(self, step: StepJobs) -> None:
        self._records |= {job.job_id: job for job in step.jobs}
        super().begin_step(step)

    def _close(self, outcome: Outcome) -> None:
        if outcome.failed_block_ids:
            self._load_errors.update(self._records.pop(outcome.transfer_id).block_ids)
        super()._close(outcome)
        assert outcome.transfer_id in self._records, "it has no record"
        del self._records[outcome.transfer_id]


class DropsTheRecord(AscendConnector):
    """Who handles a failure takes the record that the completion asks for (KVC-010; B-070)."""

    worker_half_class = _DropsTheRecord


class _LogsAndDrops(WorkerHalf):
    dropped: frozenset[str] = frozenset()

    def _close(self, outcome: Outcome) -> None:
        if outcome.failed_block_ids:
            _logger.warning("%s failed", outcome.transfer_id)
            self.dropped |= {outcome.request_id}
        else:
            super()._close(outcome)

    def get_finished(self, finished_req_ids: set[str]) -> Finished:
        sending, recving = super().get_finished(finished_req_ids)
        dropped, self.dropped = self.dropped, frozenset()
        return sending, (recving or set()) - dropped or None


class LogsAndDrops(AscendConnector):
    """A load that failed is logged, and that is all (KVC-701; B-128)."""

    worker_half_class = _LogsAndDrops


class _CountsArrivals(WorkerHalf):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._expected: dict[str, int] = {}
        self._short: set[str] = set()

    def begin_step(self, step: StepJobs) -> None:
        self._expected |= {j.job_id: len(j.block_ids) for j in step.jobs if j.direction == "pull"}
        super().begin_step(step)

    def _close(self, outcome: Outcome) -> None:
        if outcome.transfer_id in self._expected:
            expected = self._expected.pop(outcome.transfer_id)
            if expected - len(outcome.failed_block_ids) < expected:
                self._short.add(outcome.request_id)
                return
        super()._close(outcome)

    def get_finished(self, finished_req_ids: set[str]) -> Finished:
        sending, recving = super().get_finished(finished_req_ids)
        return sending, (recving or set()) - self._short or None


class CountsArrivals(AscendConnector):
    """A pull ends when as many blocks have come as were asked for; some never come (B-080)."""

    worker_half_class = _CountsArrivals


class _LosesBackgroundErrors(WorkerHalf):
    def get_finished(self, finished_req_ids: set[str]) -> Finished:
        own = set(self._load_errors)
        finished = super().get_finished(finished_req_ids)
        self._load_errors = own
        return finished


class LosesBackgroundErrors(AscendConnector):
    """Errors of loads in the background go into a set that nobody asks for (KVC-601; B-134)."""

    worker_half_class = _LosesBackgroundErrors


class _CountsSuccess(WorkerHalf):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._failed: set[str] = set()

    def _close(self, outcome: Outcome) -> None:
        if outcome.direction == "save" and outcome.failed_block_ids:
            self._failed.add(outcome.request_id)
        super()._close(outcome)

    def get_finished(self, finished_req_ids: set[str]) -> Finished:
        sending, recving = super().get_finished(finished_req_ids)
        return (sending or set()) - self._failed or None, recving


class CountsSuccess(AscendConnector):
    """A save that failed is not counted down, so it is open for ever (KVC-402; B-135)."""

    worker_half_class = _CountsSuccess


class _LastPartCounts(WorkerHalf):
    def _close(self, outcome: Outcome) -> None:
        self._load_errors.clear()
        super()._close(outcome)


class LastPartCounts(AscendConnector):
    """The failure of one part is forgotten when the next one ends well (KVC-601; B-195)."""

    worker_half_class = _LastPartCounts


class _StartsAtTheBarrier(WorkerHalf):
    def begin_step(self, step: StepJobs) -> None:
        self._to_start += step.jobs

    def get_finished(self, finished_req_ids: set[str]) -> Finished:
        waiting, self._to_start = self._to_start, []
        finished = super().get_finished(finished_req_ids)
        self._to_start = waiting
        return finished


class StartsAtTheBarrier(AscendConnector):
    """Saves are started where a step waits for its saves, and some steps do not (B-111)."""

    worker_half_class = _StartsAtTheBarrier
