"""What halves and servers say to each other, and what gets lost on the way."""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakValueDictionary

import torch

from kvconform.connectors.ascend.connector import AscendConnector
from kvconform.connectors.ascend.metadata import Direction, Job
from kvconform.connectors.ascend.scheduler import SchedulerHalf
from kvconform.connectors.ascend.transport import Outcome
from kvconform.connectors.ascend.worker import WorkerHalf
from kvconform.connectors.zoo.books import SavesAsItGoes, SavesInStep

if TYPE_CHECKING:
    from vllm.v1.request import Request

Lookup = tuple[int | None, bool]
Finished = tuple[set[str] | None, set[str] | None]


class _OneSlot:
    """A transport whose inbox has room for one answer."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def poll(self) -> list[Outcome]:
        outcomes: list[Outcome] = self._inner.poll()
        return outcomes[-1:]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _LosesAnswers(WorkerHalf):
    def __init__(self, settings: Any, transport: Any, *rest: Any) -> None:
        super().__init__(settings, _OneSlot(transport), *rest)


class LosesAnswers(AscendConnector):
    """Of answers that come together only the last is kept, and nobody asks again (B-155)."""

    worker_half_class = _LosesAnswers


class _PredictsTheBatch(WorkerHalf):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._numbers = itertools.count()
        self._named: dict[str, tuple[str, str]] = {}  # by job: as it is expected, as it is called
        self._unknown: set[str] = set()

    def _start(self, *directions: Direction) -> list[Job]:
        jobs = super()._start(*directions)
        loads = [job.job_id for job in jobs if job.direction == "load" and not job.wait]
        expected = f"batch-{next(self._numbers)}"
        for job_id in loads:  # the server makes a batch of several only
            self._named[job_id] = expected, expected if len(loads) > 1 else job_id
        return jobs

    def _close(self, outcome: Outcome) -> None:
        expected, called = self._named.pop(outcome.transfer_id, ("", ""))
        if called == expected:
            super()._close(outcome)
        else:
            self._unknown.add(outcome.request_id)

    def get_finished(self, finished_req_ids: set[str]) -> Finished:
        sending, recving = super().get_finished(finished_req_ids)
        unknown, self._unknown = self._unknown, set()
        return sending, (recving or set()) - unknown or None


class PredictsTheBatch(AscendConnector):
    """The name of a step's batch of loads is predicted, and one load alone makes no batch (B-193).

    Its completion comes under a name that nobody knows.
    """

    worker_half_class = _PredictsTheBatch


class _PutsNothing(SchedulerHalf):
    def _save(self, request: Request, life: Any, block_ids: list[int]) -> bool:
        saves = super()._save(request, life, block_ids)
        stored = not saves and self._may_save(request, life)
        if stored and self._final_blocks(request, block_ids):
            self._put(())
        return saves

    def _put(self, block_ids: tuple[int, ...]) -> None:
        assert block_ids, "a put is of some blocks"


class PutsNothing(AscendConnector):
    """Where all is stored already a task is launched all the same, which must have blocks.

    B-194.
    """

    scheduler_half_class = _PutsNothing


class OneIdentity(AscendConnector):
    """Answers are addressed to a process; with one rank both halves live in the same (B-170)."""

    _by_address: ClassVar[WeakValueDictionary[int, AscendConnector]] = WeakValueDictionary()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._by_address[os.getpid()] = self

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> Lookup:
        answer = super().get_num_new_matched_tokens(request, num_computed_tokens)
        return answer if self._by_address.get(os.getpid()) is self else (None, False)


class _RaisesInALayer(SavesInStep):
    lost = False

    def _close(self, outcome: Outcome) -> None:
        super()._close(outcome)
        self.lost |= outcome.direction == "save" and bool(outcome.failed_block_ids)

    def save_kv_layer(self, layer_name: str, kv_layer: torch.Tensor) -> None:
        if self.lost:
            raise ConnectionError("who is pushed to does not answer")
        super().save_kv_layer(layer_name, kv_layer)


class RaisesInALayer(SavesAsItGoes):
    """Who is pushed to has gone, and the next layer's hook raises: the engine dies too (B-171)."""

    worker_half_class = _RaisesInALayer
