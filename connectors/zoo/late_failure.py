"""Failed blocks are reported one step after the load's completion.

From connectors that collect errors in a thread of their own: by the time that vLLM hears of them
the request is running on KV that was never loaded, or has finished. Rule KVC-601.
"""

from __future__ import annotations

from kvconform.connectors.ascend.connector import AscendConnector
from kvconform.connectors.ascend.worker import WorkerHalf


class _WorkerHalf(WorkerHalf):
    late: frozenset[int] = frozenset()

    def get_block_ids_with_load_errors(self) -> set[int]:
        now, self.late = self.late, frozenset(super().get_block_ids_with_load_errors())
        return set(now)  # the mistake: those of the step before


class LateFailure(AscendConnector):
    """The reference connector, but for the mistake."""

    worker_half_class = _WorkerHalf
