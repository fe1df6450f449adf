"""Exceptions that escape, and answers that vLLM cannot work with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm.v1.request import RequestStatus

from kvconform.connectors.ascend.connector import AscendConnector
from kvconform.connectors.ascend.scheduler import SchedulerHalf
from kvconform.connectors.ascend.transport import Outcome
from kvconform.connectors.ascend.worker import WorkerHalf

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
    from vllm.v1.request import Request

Finish = tuple[bool, dict[str, Any] | None]
Lookup = tuple[int | None, bool]
Finished = tuple[set[str] | None, set[str] | None]


class CancelsOnTheWorker(AscendConnector):
    """An abort is passed on to the worker half, which the scheduler's process does not have.

    KVC-010; B-156.
    """

    def request_finished(self, request: Request, block_ids: list[int]) -> Finish:
        if request.status == RequestStatus.FINISHED_ABORTED:
            self.worker.transport.unpin(request.request_id)
        return super().request_finished(request, block_ids)


class _SaysNothing(WorkerHalf):
    def get_block_ids_with_load_errors(self) -> set[int]:
        return super().get_block_ids_with_load_errors() or None  # type: ignore[return-value]


class NoErrorsIsNone(AscendConnector):
    """Answers None when no load failed, where vLLM wants an empty set.

    KVC-011.
    """

    worker_half_class = _SaysNothing


class _RaisesOnFailure(WorkerHalf):
    def _close(self, outcome: Outcome) -> None:
        if outcome.failed_block_ids:
            raise RuntimeError(f"{outcome.transfer_id} failed")
        super()._close(outcome)


class RaisesOnFailure(AscendConnector):
    """A transfer that failed raises when it is polled, and nobody catches it (KVC-010; B-069)."""

    worker_half_class = _RaisesOnFailure


class _AnswersItsOwnSet(WorkerHalf):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._errors: set[int] = set()

    def get_block_ids_with_load_errors(self) -> set[int]:
        self._errors.clear()
        self._errors |= super().get_block_ids_with_load_errors()
        return self._errors


class AnswersItsOwnSet(AscendConnector):
    """Failed blocks are answered in the very set that is emptied in the next step.

    KVC-907.
    """

    worker_half_class = _AnswersItsOwnSet


class AnswersBool(AscendConnector):
    """Whether blocks must live is answered bare, without the parameters (KVC-011; B-173)."""

    def request_finished(self, request: Request, block_ids: list[int]) -> Finish:
        return super().request_finished(request, block_ids)[0]  # type: ignore[return-value]


class OldParameters(AscendConnector):
    """A hook takes what it took before vLLM passed more (KVC-002; B-205)."""

    def start_load_kv(self) -> None:  # type: ignore[override]
        super().start_load_kv(None)


class LeftoverHook(AscendConnector):
    """Still has the hook for caches of all layers in one tensor, which vLLM calls no more."""

    def register_cross_layers_kv_cache(self, kv_cache: Any, attn_backend: Any) -> None:
        self.register_kv_caches({"all layers": kv_cache})


class _MustBeKnown(SchedulerHalf):
    def request_finished(self, request: Request, block_ids: list[int]) -> Finish:
        self._lives[request.request_id].load_failed = False
        return super().request_finished(request, block_ids)


class MustBeKnown(AscendConnector):
    """A request's end looks it up in a table, where it is only once it was scheduled.

    KVC-010; B-166.
    """

    scheduler_half_class = _MustBeKnown


class PreemptedByName(AscendConnector):
    """Preempted requests are expected by name, as until 0.18, and not as metadata.

    KVC-010; B-205.
    """

    def handle_preemptions(self, preempted_req_ids: set[str]) -> None:
        for request_id in preempted_req_ids:
            self.worker._load_errors -= {hash(request_id)}


class TwoArguments(AscendConnector):
    """The constructor takes two arguments, as it did in 0.11 (KVC-001; B-205)."""

    def __init__(self, vllm_config: VllmConfig, role: KVConnectorRole) -> None:
        super().__init__(vllm_config, role)
