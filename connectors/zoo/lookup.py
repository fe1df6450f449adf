"""Lookups that promise what is not there, or not twice, or never."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvconform.connectors.ascend.connector import AscendConnector
from kvconform.connectors.ascend.scheduler import SchedulerHalf

if TYPE_CHECKING:
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
