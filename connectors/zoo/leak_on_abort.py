"""A load is forgotten when its request has ended: it is never reported, its blocks never come back.

From vllm-ascend's AscendStore and vLLM #46283: the worker takes an aborted request, named in
``finished_req_ids``, for one whose load is over. Rule KVC-304.
"""

from __future__ import annotations

from kvconform.connectors.ascend.connector import AscendConnector
from kvconform.connectors.ascend.worker import WorkerHalf


class _WorkerHalf(WorkerHalf):
    dead: frozenset[str] = frozenset()

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        self.dead |= finished_req_ids
        sending, recving = super().get_finished(finished_req_ids)
        return sending, (recving or set()) - self.dead or None  # the mistake


class LeakOnAbort(AscendConnector):
    """The reference connector, but for the mistake."""

    worker_half_class = _WorkerHalf
