"""A transfer is forgotten one step after it was reported, so each is reported twice.

From connectors that clear their table of transfers when the scheduler has answered. The aggregator
counts reports, not ranks: with two ranks a request completes while one of them is still busy. Rule
KVC-303.
"""

from __future__ import annotations

from kvconform.connectors.ascend.connector import AscendConnector
from kvconform.connectors.ascend.worker import WorkerHalf

Finished = tuple[set[str] | None, set[str] | None]


class _WorkerHalf(WorkerHalf):
    before: Finished = (None, None)

    def get_finished(self, finished_req_ids: set[str]) -> Finished:
        now = super().get_finished(finished_req_ids)
        before, self.before = self.before, now
        sending, recving = ((n or set()) | (b or set()) for n, b in zip(now, before, strict=True))
        return sending or None, recving or None  # the mistake: those of the step before as well


class DoubleCompletion(AscendConnector):
    """The reference connector, but for the mistake."""

    worker_half_class = _WorkerHalf
