"""What an engine's former life has left outside, taken for its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

from kvconform.connectors.ascend.connector import AscendConnector
from kvconform.connectors.ascend.metadata import Direction, Job
from kvconform.connectors.ascend.scheduler import SchedulerHalf
from kvconform.connectors.ascend.settings import Settings
from kvconform.connectors.ascend.store import HostStore
from kvconform.connectors.ascend.transport import Transport
from kvconform.connectors.ascend.worker import WorkerHalf

Finished = tuple[set[str] | None, set[str] | None]


def _store(transport: Any) -> HostStore:
    return transport.store


def _name(settings: Settings) -> str:
    """The engine's name, which is the same in all of its lives."""
    return settings.engine_id.partition("l")[0]


class _LocksTheStore(SchedulerHalf):
    locks: ClassVar[WeakKeyDictionary[HostStore, set[str]]] = WeakKeyDictionary()

    def __init__(self, settings: Settings, transport: Transport) -> None:
        super().__init__(settings, transport)
        held = self.locks.setdefault(_store(transport), set())
        if _name(settings) in held:
            raise RuntimeError("another engine of this name uses the store")
        held.add(_name(settings))

    def shutdown(self) -> None:
        self.locks[_store(self.transport)].discard(_name(self.settings))
        super().shutdown()


class LocksTheStore(AscendConnector):
    """A lock in the store keeps others out, and stays when its owner has died (KVC-808)."""

    scheduler_half_class = _LocksTheStore


class _KeepsAJournal(WorkerHalf):
    journals: ClassVar[WeakKeyDictionary[HostStore, dict[tuple[str, int], set[str]]]] = (
        WeakKeyDictionary()
    )

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        journal = self.journals.setdefault(_store(self.transport), {})
        self.sending = journal.setdefault((_name(self.settings), self.rank), set())
        self.inherited = set(self.sending)

    def _start(self, *directions: Direction) -> list[Job]:
        jobs = super()._start(*directions)
        self.sending |= {job.request_id for job in jobs if job.direction == "save"}
        return jobs

    def get_finished(self, finished_req_ids: set[str]) -> Finished:
        sending, recving = super().get_finished(finished_req_ids)
        inherited, self.inherited = self.inherited, set()
        sending = (sending or set()) | inherited
        self.sending -= sending
        return sending or None, recving


class KeepsAJournal(AscendConnector):
    """Saves that are under way are written down outside; who starts anew reports them (KVC-808)."""

    worker_half_class = _KeepsAJournal


class _LocalForRemote(SchedulerHalf):
    def _plan(
        self, job_id: str, request: Any, life: Any, direction: Direction,
        keys: Sequence[bytes], block_ids: Sequence[int], *rest: Any, **more: Any,
    ) -> None:  # fmt: skip
        if direction == "pull":
            source = more["source"]
            mine = tuple(block_ids)[: len(source.block_ids)]
            more["source"] = type(source)(
                source.engine_id, source.offer_id, mine, source.address, source.instance
            )
        super()._plan(job_id, request, life, direction, keys, block_ids, *rest, **more)


class LocalForRemote(AscendConnector):
    """What is to be read where another engine offers it is named by the reader's own blocks.

    KVC-501; B-073.
    """

    scheduler_half_class = _LocalForRemote


class _NotifiesByItsOwnId(SchedulerHalf):
    def _release(self, request: Any, life: Any, remote: dict[str, Any]) -> None:
        super()._release(request, life, {**remote, "remote_offer_id": request.request_id})


class NotifiesByItsOwnId(AscendConnector):
    """Who needs nothing says so under its own id, which the engine that prefilled does not know.

    KVC-403; B-072.
    """

    scheduler_half_class = _NotifiesByItsOwnId
