"""KV that was computed and is not kept, though there was room and nothing failed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvconform.connectors.ascend.connector import AscendConnector
from kvconform.connectors.ascend.scheduler import SchedulerHalf
from kvconform.connectors.zoo.books import entries

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.request import Request

    from kvconform.connectors.ascend.metadata import StepJobs

Finish = tuple[bool, dict[str, Any] | None]


class _Watches(SchedulerHalf):
    """Hears what each step schedules of a request, and saves no more blocks than ``_kept`` says."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._requests: dict[str, Request] = {}
        self._most: dict[str, int] = {}  # blocks, by request

    def update_state_after_alloc(
        self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int
    ) -> None:
        super().update_state_after_alloc(request, blocks, num_external_tokens)
        self._requests[request.request_id] = request

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> StepJobs:
        for request_id, _, _, computed in entries(scheduler_output):
            scheduled = scheduler_output.num_scheduled_tokens[request_id]
            self._note(self._requests[request_id], computed, scheduled)
        return super().build_connector_meta(scheduler_output)

    def request_finished(self, request: Request, block_ids: list[int]) -> Finish:
        answer = super().request_finished(request, block_ids)
        self._requests.pop(request.request_id, None)
        self._most.pop(request.request_id, None)
        return answer

    def _final_blocks(self, request: Request, block_ids: list[int]) -> int:
        final = super()._final_blocks(request, block_ids)
        return min(final, self._most.get(request.request_id, final))

    def _note(self, request: Request, computed: int, scheduled: int) -> None:
        raise NotImplementedError


class _SavesTheFirstChunk(_Watches):
    def _note(self, request: Request, computed: int, scheduled: int) -> None:
        blocks = (computed + scheduled) // self.settings.block_size
        self._most.setdefault(request.request_id, blocks)


class SavesTheFirstChunk(AscendConnector):
    """Saves are planned for new requests only: what later steps compute is not kept (B-095)."""

    scheduler_half_class = _SavesTheFirstChunk


class _CursorAhead(_Watches):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._cursors: dict[str, int] = {}  # blocks dealt with, by request

    def _note(self, request: Request, computed: int, scheduled: int) -> None:
        name, hashed = request.request_id, len(request.block_hashes)
        passed = (computed + scheduled) // self.settings.block_size
        if passed > max(hashed, self._cursors.get(name, 0)):
            self._most.setdefault(name, hashed)  # it has no hash, and the cursor does not come back
        self._cursors[name] = max(passed, self._cursors.get(name, 0))

    def request_finished(self, request: Request, block_ids: list[int]) -> Finish:
        self._cursors.pop(request.request_id, None)
        return super().request_finished(request, block_ids)


class CursorAhead(AscendConnector):
    """A cursor moves by the tokens that are scheduled, past blocks that have no hash yet (B-103).

    They have none where vLLM schedules a token before it has been sampled.
    """

    scheduler_half_class = _CursorAhead


class _AbandonsTheBacklog(_Watches):
    blocks_a_step = 2

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._saved: dict[str, int] = {}  # blocks, by request

    def _note(self, request: Request, computed: int, scheduled: int) -> None:
        name, size = request.request_id, self.settings.block_size
        saved = self._saved.setdefault(name, computed // size)
        if computed < request.num_prompt_tokens:
            filled = (computed + scheduled) // size
            self._saved[name] = max(saved, min(filled, saved + self.blocks_a_step))
        done = computed + scheduled >= request.num_prompt_tokens
        if done and self._saved[name] < request.num_prompt_tokens // size:
            self._most.setdefault(name, self._saved[name])

    def request_finished(self, request: Request, block_ids: list[int]) -> Finish:
        self._saved.pop(request.request_id, None)
        return super().request_finished(request, block_ids)


class AbandonsTheBacklog(AscendConnector):
    """Two blocks of a prompt are saved in a step, and what is left when it is computed never is.

    B-127.
    """

    scheduler_half_class = _AbandonsTheBacklog


class _CountsTheScheduled(_Watches):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._scheduled: dict[str, int] = {}

    def _note(self, request: Request, computed: int, scheduled: int) -> None:
        name = request.request_id
        self._scheduled[name] = self._scheduled.get(name, 0) + scheduled

    def request_finished(self, request: Request, block_ids: list[int]) -> Finish:
        if self._scheduled.pop(request.request_id, 0) < request.num_prompt_tokens:
            self._most[request.request_id] = 0
        return super().request_finished(request, block_ids)


class CountsTheScheduled(AscendConnector):
    """A request is saved when its whole prompt was scheduled: with tokens from a cache it never is.

    B-187.
    """

    scheduler_half_class = _CountsTheScheduled
