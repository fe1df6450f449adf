"""What is remembered of a request, for too long or in two states at once."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from kvconform.connectors.ascend.connector import AscendConnector
from kvconform.connectors.ascend.scheduler import SchedulerHalf

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.request import Request

Finish = tuple[bool, dict[str, Any] | None]


class _KeepsLives(SchedulerHalf):
    def request_finished(self, request: Request, block_ids: list[int]) -> Finish:
        lives = dict(self._lives)
        finish = super().request_finished(request, block_ids)
        self._lives = lives
        return finish


class KeepsLives(AscendConnector):
    """What is remembered of a request is never forgotten (B-145)."""

    scheduler_half_class = _KeepsLives


class _KeepsTheTask(SchedulerHalf):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._tasks: set[str] = set()

    def update_state_after_alloc(
        self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int
    ) -> None:
        super().update_state_after_alloc(request, blocks, num_external_tokens)
        if num_external_tokens:
            self._tasks.add(request.request_id)

    def _settle(self, closed: Any) -> None:
        super()._settle(closed)
        if closed.job.direction in ("load", "pull") and not closed.job.wait:
            self._tasks.discard(closed.job.request_id)

    def _save(self, request: Request, life: Any, block_ids: list[int]) -> bool:
        return request.request_id not in self._tasks and super()._save(request, life, block_ids)


class KeepsTheTask(AscendConnector):
    """Only loads in the background are struck from the table of tasks (B-191).

    Who is still in it is not saved.
    """

    scheduler_half_class = _KeepsTheTask


class _MovesWhatItTook(SchedulerHalf):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._recent: OrderedDict[bytes, bool] = OrderedDict()  # whether it is ready

    def _plan(self, job_id: str, request: Request, life: Any, *rest: Any, **more: Any) -> None:
        super()._plan(job_id, request, life, *rest, **more)
        if rest[0] == "save":
            self._recent |= dict.fromkeys(rest[1], False)

    def _settle(self, closed: Any) -> None:
        super()._settle(closed)
        if closed.job.direction == "save":
            self._recent |= dict.fromkeys(closed.job.keys, True)

    def _save(self, request: Request, life: Any, block_ids: list[int]) -> bool:
        for key in self._keys(request, 0):
            if key in self._recent:
                if self._recent.pop(key):
                    self._recent[key] = True
                else:
                    self._recent.move_to_end(key)  # it has been taken out
        return super()._save(request, life, block_ids)


class MovesWhatItTook(AscendConnector):
    """To mark a key as used it is taken out and put back, unless it is being saved: it is lost.

    The next touch finds nothing to move (B-104).
    """

    scheduler_half_class = _MovesWhatItTook


class _NeverRests(SchedulerHalf):
    pushing = False

    def _plan(self, job_id: str, request: Request, life: Any, *rest: Any, **more: Any) -> None:
        super()._plan(job_id, request, life, *rest, **more)
        self.pushing |= rest[0] == "save"


class NeverRests(AscendConnector):
    """Whether there is work under way is a flag, which is set by the first save and stays so."""

    scheduler_half_class = _NeverRests

    def has_pending_push_work(self) -> bool:
        return isinstance(self.scheduler, _NeverRests) and self.scheduler.pushing


class _ExpectsRest(SchedulerHalf):
    def shutdown(self) -> None:
        assert not self._open, "jobs are open"
        super().shutdown()


class ExpectsRest(AscendConnector):
    """An engine is expected to be shut down when nothing is under way any more."""

    scheduler_half_class = _ExpectsRest
