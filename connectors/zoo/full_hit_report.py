"""A full local hit is reported as received.

From vllm-ascend's ``mooncake_connector.py`` (released 0.18.0): the scheduler half queues a request
for receiving because its KV lies outside, although vLLM found all of it locally and nothing is left
to load; the worker half finds nothing to copy, and reports the request in ``finished_recving`` all
the same. The scheduler finds a running request there, and the engine dies. Rule KVC-302.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvconform.connectors.ascend.connector import AscendConnector
from kvconform.connectors.ascend.scheduler import SchedulerHalf, source_of

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.request import Request


class _SchedulerHalf(SchedulerHalf):
    def update_state_after_alloc(
        self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int
    ) -> None:
        life = self._lives[request.request_id]
        nothing = not num_external_tokens and not life.in_background
        if nothing and life.local_blocks and self.settings.may_load:
            # The mistake: what lies outside is received, whether or not it is needed.
            remote = self._remote(request, life)
            if remote is not None:
                life.remote_is_done = True
                job_id = self._new_id("pull")
                self._plan(job_id, request, life, "pull", (), (), source=source_of(remote, ()))
            elif self.transport.lookup(self._keys(request, 0)[: life.local_blocks]):
                self._plan(self._new_id("load"), request, life, "load", (), ())
            return
        super().update_state_after_alloc(request, blocks, num_external_tokens)


class FullHitReport(AscendConnector):
    """The reference connector, but for the mistake."""

    scheduler_half_class = _SchedulerHalf
