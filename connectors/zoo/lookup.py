"""Lookups that promise what is not there, or not twice, or never."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvconform.connectors.ascend.connector import AscendConnector
from kvconform.connectors.ascend.scheduler import SchedulerHalf

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.request import Request

Finish = tuple[bool, dict[str, Any] | None]
Lookup = tuple[int | None, bool]
Finished = tuple[set[str] | None, set[str] | None]


class _DoesNotClamp(SchedulerHalf):
    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> Lookup:
        answer, in_background = super().get_num_new_matched_tokens(request, num_computed_tokens)
        if answer == 0:
            found = self.transport.lookup(self._keys(request, 0)) or 0
            return found * self.settings.block_size - num_computed_tokens, False
        return answer, in_background


class NegativePromise(AscendConnector):
    """Subtracts the local tokens from what the store holds, without ``max(0, …)``.

    KVC-101; B-041.
    """

    scheduler_half_class = _DoesNotClamp


class _LeavesNothing(SchedulerHalf):
    def _promise(self, request: Request, local: int, found: int) -> tuple[int, bool]:
        return found, found >= self.settings.async_min_blocks


class WholePrompt(AscendConnector):
    """A synchronous load may reach the prompt's end: no token is left to compute.

    KVC-102; B-042, B-196.
    """

    scheduler_half_class = _LeavesNothing


class _AlwaysInBackground(SchedulerHalf):
    def _promise(self, request: Request, local: int, found: int) -> tuple[int, bool]:
        return found, True


class NothingInBackground(AscendConnector):
    """Loads in the background whatever the store says, even when it says that there is nothing.

    KVC-103; B-144.
    """

    scheduler_half_class = _AlwaysInBackground


class _LeastOfAllRanks(SchedulerHalf):
    def _promise(self, request: Request, local: int, found: int) -> tuple[int, bool]:
        ranks = np.full(self.settings.world_size, found)
        return super()._promise(request, local, ranks.min())


class NumpyPromise(AscendConnector):
    """The least count of all ranks stays what numpy made it.

    KVC-104.
    """

    scheduler_half_class = _LeastOfAllRanks


class _AnswersOnce(SchedulerHalf):
    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> Lookup:
        answer = super().get_num_new_matched_tokens(request, num_computed_tokens)
        taken = self.__dict__.setdefault("_taken", set())
        if request.request_id in taken:
            return 0, False
        if answer[0]:
            taken.add(request.request_id)
        return answer


class ConsumesInLookup(AscendConnector):
    """A positive answer is taken for a reservation, and is not given a second time.

    KVC-105; B-204.
    """

    scheduler_half_class = _AnswersOnce


class _NeverAsksAgain(SchedulerHalf):
    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> Lookup:
        pending = self.__dict__.setdefault("_pending", set())
        if request.request_id in pending:
            return None, False
        answer = super().get_num_new_matched_tokens(request, num_computed_tokens)
        if answer[0] is None:
            pending.add(request.request_id)
        return answer


class PendingForEver(AscendConnector):
    """A query that the store left unanswered stays pending: there is no deadline for it.

    KVC-106; B-118.
    """

    scheduler_half_class = _NeverAsksAgain


class _CountsTheTail(SchedulerHalf):
    def _promise(self, request: Request, local: int, found: int) -> tuple[int, bool]:
        whole = (local + found) == request.num_tokens // self.settings.block_size
        return super()._promise(request, local, found + (1 if found and whole else 0))


class CountsTheTail(AscendConnector):
    """The prompt's begun last block counts as a whole one (KVC-102; B-186)."""

    scheduler_half_class = _CountsTheTail


class _CountsAhead(SchedulerHalf):
    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> Lookup:
        answer = super().get_num_new_matched_tokens(request, num_computed_tokens)
        request.num_computed_tokens = num_computed_tokens + (answer[0] or 0)
        return answer


class CountsAhead(AscendConnector):
    """Writes what it found into the request, where its later hooks look it up."""

    scheduler_half_class = _CountsAhead


class _ForgetsLocalHit(SchedulerHalf):
    def _promise(self, request: Request, local: int, found: int) -> tuple[int, bool]:
        blocks, in_background = super()._promise(request, local, found)
        return blocks and blocks + local, in_background


class ForgetsLocalHit(AscendConnector):
    """Promises what the store has of the whole prompt, on top of what was found locally.

    KVC-102; B-042.
    """

    scheduler_half_class = _ForgetsLocalHit


class _CountsAgain(SchedulerHalf):
    def update_state_after_alloc(
        self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int
    ) -> None:
        life = self._lives[request.request_id]
        if num_external_tokens and not life.pulls:
            found = self.transport.lookup(self._keys(request, life.local_blocks))
            num_external_tokens = self._again(num_external_tokens, found)
        super().update_state_after_alloc(request, blocks, num_external_tokens)

    def _again(self, promised: int, found: int | None) -> int:
        there = promised if found is None else found * self.settings.block_size
        assert there >= promised, f"expected {promised} tokens, got {there}"
        return promised


class CountsAgain(AscendConnector):
    """Looks up again at admission, and asserts that nothing was evicted meanwhile.

    KVC-010; B-123.
    """

    scheduler_half_class = _CountsAgain


class _LoadsWhatIsLeft(_CountsAgain):
    def _again(self, promised: int, found: int | None) -> int:
        return promised if found is None else min(promised, found * self.settings.block_size)


class LoadsWhatIsLeft(AscendConnector):
    """Looks up again at admission, and loads what is left of the promise (KVC-501; B-123)."""

    scheduler_half_class = _LoadsWhatIsLeft


class _LoadsItsOwnCount(SchedulerHalf):
    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> Lookup:
        answer = super().get_num_new_matched_tokens(request, num_computed_tokens)
        self.__dict__.setdefault("_hits", {})[request.request_id] = answer[0] or 0
        return answer

    def update_state_after_alloc(
        self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int
    ) -> None:
        hit = self.__dict__["_hits"][request.request_id]
        super().update_state_after_alloc(request, blocks, hit)


class LoadsItsOwnCount(AscendConnector):
    """Loads what its last lookup found, however many tokens it is told, and also for none.

    KVC-302; B-057.
    """

    scheduler_half_class = _LoadsItsOwnCount


class _TimesOutOnce(SchedulerHalf):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._pending: set[str] = set()
        self._polls: dict[str, int] = {}

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> Lookup:
        answer = super().get_num_new_matched_tokens(request, num_computed_tokens)
        name = request.request_id
        if answer[0] is not None:
            self._pending.discard(name)
            self._polls.pop(name, None)
            return answer
        if name not in self._pending:
            self._pending.add(name)
            self._polls[name] = 0
        self._polls[name] += 1
        if self._polls[name] == 2:
            del self._polls[name]  # and it stays pending
            return 0, False
        return answer


class TimesOutOnce(AscendConnector):
    """A query that timed out has no timer any more but stays pending: the next poll asks for it.

    KVC-010; B-162.
    """

    scheduler_half_class = _TimesOutOnce


class _LastPosition(SchedulerHalf):
    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> Lookup:
        answer = super().get_num_new_matched_tokens(request, num_computed_tokens)
        if answer[0] is not None:
            return answer
        life = self._lives[request.request_id]
        position = len(self._keys(request, life.local_blocks)) - 1
        blocks, life.in_background = self._promise(request, life.local_blocks, max(0, position))
        return blocks * self.settings.block_size, life.in_background


class LastPosition(AscendConnector):
    """A lookup that breaks off answers with where the last block starts, as if all were there.

    KVC-501; B-168.
    """

    scheduler_half_class = _LastPosition


class _ReservesPerLookup(SchedulerHalf):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._room = 16  # blocks of the staging area
        self._taken: dict[str, int] = {}

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> Lookup:
        answer = super().get_num_new_matched_tokens(request, num_computed_tokens)
        blocks = (answer[0] or 0) // self.settings.block_size
        if blocks > self._room:
            return 0, False
        self._room -= blocks
        self._taken[request.request_id] = blocks
        return answer

    def request_finished(self, request: Request, block_ids: list[int]) -> Finish:
        self._room += self._taken.pop(request.request_id, 0)
        return super().request_finished(request, block_ids)


class ReservesPerLookup(AscendConnector):
    """Each lookup takes room to stage its load, and a request gives back the room of one.

    KVC-105; B-197.
    """

    scheduler_half_class = _ReservesPerLookup


class _Insists(SchedulerHalf):
    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> Lookup:
        if request.request_id in self._lives:
            self._lives[request.request_id].load_failed = False
        return super().get_num_new_matched_tokens(request, num_computed_tokens)


class Insists(AscendConnector):
    """That a load has failed is not remembered: it is promised again, at once and for ever.

    Nothing forbids that, and vLLM takes its word each time (VLL-703).
    """

    scheduler_half_class = _Insists


class _ReloadsWhatFailed(SchedulerHalf):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._loads: dict[str, tuple[Any, ...]] = {}  # by request: what its last load was of

    def _plan(self, job_id: str, request: Request, life: Any, *rest: Any, **more: Any) -> None:
        if rest[0] == "load":
            self._loads[request.request_id] = rest
        super()._plan(job_id, request, life, *rest, **more)

    def update_state_after_alloc(
        self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int
    ) -> None:
        super().update_state_after_alloc(request, blocks, num_external_tokens)
        life, load = self._lives[request.request_id], self._loads.get(request.request_id)
        if load is not None and life.load_failed and not num_external_tokens:
            _, keys, _ = load
            block_ids = blocks.get_block_ids()[0][life.local_blocks :][: len(keys)]
            job_id = self._new_id("load")
            self.transport.pin(job_id, keys)
            self._plan(job_id, request, life, "load", keys[: len(block_ids)], block_ids, wait=True)

    def request_finished(self, request: Request, block_ids: list[int]) -> Finish:
        self._loads.pop(request.request_id, None)
        return super().request_finished(request, block_ids)


class ReloadsWhatFailed(AscendConnector):
    """A load that failed is made up for when its request is admitted to compute the tokens itself.

    KVC-205.
    """

    scheduler_half_class = _ReloadsWhatFailed
