"""What is locked in the store, and never unlocked, or too soon."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvconform.connectors.ascend.carrier import delivered
from kvconform.connectors.ascend.connector import AscendConnector
from kvconform.connectors.ascend.scheduler import SchedulerHalf

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

Finish = tuple[bool, dict[str, Any] | None]
Lookup = tuple[int | None, bool]


class _LocksInLookup(SchedulerHalf):
    """Locks what a lookup finds until the request is admitted."""

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> Lookup:
        answer = super().get_num_new_matched_tokens(request, num_computed_tokens)
        life = self._lives[request.request_id]
        if answer[0] and not life.pulls:
            keys = self._keys(request, life.local_blocks)
            self.transport.pin(self._lock(request), keys[: answer[0] // self.settings.block_size])
        return answer

    def update_state_after_alloc(
        self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int
    ) -> None:
        super().update_state_after_alloc(request, blocks, num_external_tokens)
        self._unlock(request)

    def _lock(self, request: Request) -> str:
        return f"{self.settings.engine_id}/{request.request_id}"

    def _unlock(self, request: Request) -> None:
        self.transport.unpin(self._lock(request))


class LocksInLookup(AscendConnector):
    """What a lookup locks is unlocked at admission, and who is aborted before is not admitted.

    B-147.
    """

    scheduler_half_class = _LocksInLookup


class _UnlocksWithoutSalt(_LocksInLookup):
    def _lock(self, request: Request) -> str:
        return f"{super()._lock(request)}/{request.cache_salt or ''}"

    def _unlock(self, request: Request) -> None:
        self.transport.unpin(f"{super()._lock(request)}/")

    def request_finished(self, request: Request, block_ids: list[int]) -> Finish:
        self._unlock(request)
        return super().request_finished(request, block_ids)


class UnlocksWithoutSalt(AscendConnector):
    """A lock's name has the salt in it, when it is taken but not when it is given back (B-148)."""

    scheduler_half_class = _UnlocksWithoutSalt


class _UnlocksWhatItLoads(SchedulerHalf):
    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> Lookup:
        answer = super().get_num_new_matched_tokens(request, num_computed_tokens)
        if answer[0] and not self._lives[request.request_id].pulls:
            end = (num_computed_tokens + answer[0]) // self.settings.block_size
            for index, key in enumerate(self._keys(request, 0)[:end]):
                self.transport.pin(self._lock(request, index), [key])
        return answer

    def update_state_after_alloc(
        self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int
    ) -> None:
        super().update_state_after_alloc(request, blocks, num_external_tokens)
        start = self._lives[request.request_id].local_blocks
        for index in range(start, start + num_external_tokens // self.settings.block_size):
            self.transport.unpin(self._lock(request, index))

    def _lock(self, request: Request, index: int) -> str:
        return f"{self.settings.engine_id}/{request.request_id}/{index}"


class UnlocksWhatItLoads(AscendConnector):
    """A lookup locks all that the store has of a prompt, and what is loaded is unlocked (B-146)."""

    scheduler_half_class = _UnlocksWhatItLoads


class _TaskPerLookup(SchedulerHalf):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._tasks: dict[str, str] = {}

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> Lookup:
        answer = super().get_num_new_matched_tokens(request, num_computed_tokens)
        start = num_computed_tokens // self.settings.block_size
        task = self._tasks[request.request_id] = self._new_id("load")
        self.transport.pin(task, self._keys(request, start))
        return answer

    def update_state_after_alloc(
        self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int
    ) -> None:
        super().update_state_after_alloc(request, blocks, num_external_tokens)
        if num_external_tokens:
            self.transport.unpin(self._tasks.pop(request.request_id))


class TaskPerLookup(AscendConnector):
    """Each lookup makes a task in the store, and only the one that is loaded from is ended.

    B-192.
    """

    scheduler_half_class = _TaskPerLookup


class _UnlocksPerRank(SchedulerHalf):
    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        report = delivered(connector_output)
        for job_id in report.closings if report is not None else ():
            self.transport.unpin(job_id)
        super().update_connector_output(connector_output)


class UnlocksPerRank(AscendConnector):
    """Each rank's part of a load gives back the locks of the whole (B-182)."""

    scheduler_half_class = _UnlocksPerRank


class _LocksAreASet(SchedulerHalf):
    def _settle(self, closed: Any) -> None:
        super()._settle(closed)
        if closed.job.direction == "load":
            for job_id, opened in self._open.items():
                if not set(closed.job.keys).isdisjoint(opened.job.keys):
                    self.transport.unpin(job_id)


class LocksAreASet(AscendConnector):
    """Locks are kept in a set, not counted: the first load to end unlocks for all (B-200)."""

    scheduler_half_class = _LocksAreASet
