"""Wrong schedulers, each to be mixed into one of vLLM's, under the right connector.

They show that the rules of what vLLM itself owes are noticed, and put down to vLLM.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from vllm.v1.request import RequestStatus

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.request import Request
else:
    Scheduler = object  # which of vLLM's it is, the shape decides


def _ids(request_ids: str | Iterable[str] | None) -> list[str]:
    """What is given to ``finish_requests``, as a list."""
    return [request_ids] if isinstance(request_ids, str) else list(request_ids or ())


class ForgetsWhatWasReceived(Scheduler):
    """What was received is forgotten when there is no room for the rest (VLL-001; B-008)."""

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        output = super().schedule(*args, **kwargs)
        for request in self.requests.values():
            if request.status in (RequestStatus.WAITING, RequestStatus.PREEMPTED):
                request.num_computed_tokens = 0
        return output


class FinishesTwice(Scheduler):
    """An abort of a request that has ended, and is being sent, ends it again (VLL-102; B-007)."""

    def finish_requests(
        self, request_ids: str | Iterable[str] | None, finished_status: RequestStatus
    ) -> Any:
        ended = [r for i in _ids(request_ids) if (r := self.requests.get(i)) and r.is_finished()]
        for request in ended:
            request.status = finished_status
            self._free_request(request)
        return super().finish_requests(request_ids, finished_status)


class TakesIdsInUse(Scheduler):
    """A request takes the place of one of its id that is being sent (VLL-103; V-12)."""

    takes_ids_in_use = True

    def add_request(self, request: Request) -> None:
        self.requests.pop(request.request_id, None)
        super().add_request(request)


class KeepsFailedBlocks(Scheduler):
    """Blocks of a failed synchronous load stay in the prefix cache (VLL-201; B-027)."""

    def _update_requests_with_invalid_blocks(
        self, *args: Any, **kwargs: Any
    ) -> tuple[set[str], int, set[int]]:
        requests, tokens, _ = super()._update_requests_with_invalid_blocks(*args, **kwargs)
        return requests, tokens, set()


class ResumesAsNew(Scheduler):
    """A preempted request that was loaded comes back as a new one (VLL-202; B-014)."""

    def _handle_blocked_waiting_request(self, request: Request) -> bool:
        loading = request.status == RequestStatus.WAITING_FOR_REMOTE_KVS
        ready = super()._handle_blocked_waiting_request(request)
        if ready and loading:
            request.status = RequestStatus.WAITING
        return ready


class RunsWhileLoading(Scheduler):
    """A request does not wait for the end of its load (VLL-104)."""

    def _handle_blocked_waiting_request(self, request: Request) -> bool:
        loading = request.status == RequestStatus.WAITING_FOR_REMOTE_KVS
        if loading and request.num_computed_tokens < request.num_tokens:
            request.status = RequestStatus.WAITING
            return True
        return super()._handle_blocked_waiting_request(request)


class CountsWhatIsGone(Scheduler):
    """A preempted request counts as computed what was in the blocks that it gave back (VLL-203)."""

    def _preempt_request(self, request: Request, *args: Any, **kwargs: Any) -> None:
        computed = request.num_computed_tokens
        super()._preempt_request(request, *args, **kwargs)
        request.num_computed_tokens = min(computed, request.num_tokens - 1)


class FreesWhileLoading(Scheduler):
    """A request that is aborted while it loads gives its blocks back at once (VLL-401; B-003)."""

    def _free_request(self, request: Request, delay_free_blocks: bool = False) -> Any:
        answer = super()._free_request(request, delay_free_blocks)
        if delay_free_blocks:
            self.kv_cache_manager.free(request)
        return answer


class FreesAtOnce(Scheduler):
    """A request that ends gives its blocks back at once, though they are being sent (VLL-401)."""

    def _connector_finished(self, request: Request) -> tuple[bool, dict[str, Any] | None]:
        answer = super()._connector_finished(request)
        self.kv_cache_manager.free(request)
        return answer


class WaitsForNothing(Scheduler):
    """Who is aborted when its load has completed waits for the completion (VLL-701; B-004)."""

    def finish_requests(
        self, request_ids: str | Iterable[str] | None, finished_status: RequestStatus
    ) -> Any:
        self.finished_recving_kv_req_ids.difference_update(_ids(request_ids))
        return super().finish_requests(request_ids, finished_status)


class TellsTwice(Scheduler):
    """That a request has ended is told in two steps, one after the other (VLL-105)."""

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        output = super().schedule(*args, **kwargs)
        before = self.__dict__.get("told", set())
        self.__dict__["told"] = set(output.finished_req_ids)
        output.finished_req_ids = output.finished_req_ids | before
        return output


class TellsOfNoAbort(Scheduler):
    """Whose client has gone while it waited is told to nobody (VLL-105)."""

    def finish_requests(
        self, request_ids: str | Iterable[str] | None, finished_status: RequestStatus
    ) -> Any:
        waiting = {i for i in _ids(request_ids) if i in self.requests} - {
            request.request_id for request in self.running
        }
        answer = super().finish_requests(request_ids, finished_status)
        self.finished_req_ids -= waiting
        return answer


class PublishesTooSoon(Scheduler):
    """Blocks that are being loaded can be found locally before they were received (VLL-204)."""

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        output = super().schedule(*args, **kwargs)
        for request in self.requests.values():
            if request.status == RequestStatus.WAITING_FOR_REMOTE_KVS:
                self.kv_cache_manager.cache_blocks(request, request.num_computed_tokens)
        return output


class ResetsInNameOnly(Scheduler):
    """A reset of the prefix cache does nothing, and says that all is well (VLL-402)."""

    def reset_prefix_cache(self, *args: Any, **kwargs: Any) -> bool:
        return not self.running


class RestsTooSoon(Scheduler):
    """The engine rests while blocks of requests that have ended are kept (VLL-702; B-020)."""

    def has_finished_requests(self) -> bool:
        return bool(self.finished_req_ids)
