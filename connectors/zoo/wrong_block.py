"""What was found locally is skipped among the blocks to write, but not among those to read.

From vLLM's offloading connector: with a local hit, a load fills the right blocks with the KV of
the prompt's start. Rule KVC-501.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvconform.connectors.ascend.connector import AscendConnector
from kvconform.connectors.ascend.metadata import Direction
from kvconform.connectors.ascend.scheduler import SchedulerHalf

if TYPE_CHECKING:
    from vllm.v1.request import Request


class _SchedulerHalf(SchedulerHalf):
    def _plan(
        self, job_id: str, request: Request, life: Any, direction: Direction, *rest: Any, **kw: Any
    ) -> None:
        if direction == "load":
            keys = self._keys(request, 0)[: len(rest[0])]  # the mistake
            self.transport.pin(job_id, keys)
            rest = (keys, *rest[1:])
        super()._plan(job_id, request, life, direction, *rest, **kw)


class WrongBlock(AscendConnector):
    """The reference connector, but for the mistake."""

    scheduler_half_class = _SchedulerHalf
