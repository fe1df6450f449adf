"""What is told of transfers, to logs, routers and the other half, and is not so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_events import BlockStored, KVCacheEvent
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorStats

from kvconform.connectors.ascend.announcements import Announcer
from kvconform.connectors.ascend.connector import AscendConnector
from kvconform.connectors.ascend.metadata import Closing, WorkerReport
from kvconform.connectors.ascend.scheduler import SchedulerHalf
from kvconform.connectors.ascend.settings import Settings
from kvconform.connectors.ascend.statistics import Stats, Tally, TransferStats
from kvconform.connectors.ascend.transport import Transport
from kvconform.connectors.ascend.worker import WorkerHalf

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.request import Request

Lookup = tuple[int | None, bool]


# -- statistics -----------------------------------------------------------------------------------


class _ForEver(Tally):
    def take(self, kind: type[Stats]) -> Stats | None:
        return kind(dict(self._counts)) if self._counts else None


class _CountsForEver(WorkerHalf):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.tally = _ForEver()


class CountsForEver(AscendConnector):
    """Tells in each step what it has counted since it was started (KVC-902)."""

    worker_half_class = _CountsForEver


class _Live(Tally):
    _told: Any = None

    def take(self, kind: type[Stats]) -> Stats | None:
        if self._told is not None:
            self._told.reset()
        counted = super().take(kind)
        if self._told is None:
            self._told = counted
        elif counted is not None:
            self._told.data.update(counted.data)
        return self._told if counted is not None else None


class _OneObject(WorkerHalf):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.tally = _Live()


class OneObject(AscendConnector):
    """Has one object for its statistics, and starts it anew when it is asked again (KVC-907)."""

    worker_half_class = _OneObject


@dataclass
class _OfPlans(TransferStats):
    def aggregate(self, other: KVConnectorStats) -> TransferStats:
        return super().aggregate(other)


class StatisticsOfTwoKinds(AscendConnector):
    """Each half has statistics of a type of its own (KVC-901; B-061)."""

    def get_kv_connector_stats(self) -> KVConnectorStats | None:
        if self._scheduler is not None:
            return self._scheduler.tally.take(_OfPlans)
        return super().get_kv_connector_stats()


class RebuiltAsBase(AscendConnector):
    """What comes to the log is made an object of the base class (KVC-901; B-061)."""

    @classmethod
    def build_kv_connector_stats(
        cls, data: dict[str, Any] | None = None
    ) -> KVConnectorStats | None:
        return KVConnectorStats(data or {})


@dataclass
class _KeysAreThere(TransferStats):
    def aggregate(self, other: KVConnectorStats) -> TransferStats:
        for name, count in other.data.items():
            self.data[name] += count
        return self


class KeysAreThere(AscendConnector):
    """Adds up as if both had counted the same things (KVC-901)."""

    @classmethod
    def build_kv_connector_stats(
        cls, data: dict[str, Any] | None = None
    ) -> KVConnectorStats | None:
        return _KeysAreThere(data or {})


@dataclass
class _InWords(TransferStats):
    def reduce(self) -> dict[str, Any]:
        return {name: f"{count:,}" for name, count in self.data.items()}


class ReducedToText(AscendConnector):
    """The numbers of the log are text already (KVC-901)."""

    @classmethod
    def build_kv_connector_stats(
        cls, data: dict[str, Any] | None = None
    ) -> KVConnectorStats | None:
        return _InWords(data or {})


class _Signed(Tally):
    def take(self, kind: type[Stats]) -> Stats | None:
        counts = {name: count for name, count in self._counts.items() if count}
        self._counts.clear()
        return kind(counts) if counts else None


class _SubtractsSnapshot(SchedulerHalf):
    def __init__(self, settings: Settings, transport: Transport) -> None:
        super().__init__(settings, transport)
        self.tally = _Signed()
        self._first: dict[str, int] = {}

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> Lookup:
        self._first.setdefault(request.request_id, num_computed_tokens)
        return super().get_num_new_matched_tokens(request, num_computed_tokens)

    def update_state_after_alloc(
        self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int
    ) -> None:
        super().update_state_after_alloc(request, blocks, num_external_tokens)
        if num_external_tokens:
            known = self._first[request.request_id] + num_external_tokens
            self.tally.add(computed_tokens=request.num_tokens - known)

    def request_finished(
        self, request: Request, block_ids: list[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        self._first.pop(request.request_id, None)
        return super().request_finished(request, block_ids)


class SubtractsSnapshot(AscendConnector):
    """Subtracts what was found at the first lookup and what is loaded after the last one.

    KVC-901; B-040.
    """

    scheduler_half_class = _SubtractsSnapshot


# -- events ---------------------------------------------------------------------------------------


class _Announces(SchedulerHalf):
    announcer_class: type[Announcer]

    def __init__(self, settings: Settings, transport: Transport) -> None:
        super().__init__(settings, transport)
        if self._announcer is not None:
            self._announcer = self.announcer_class(settings.block_size)
            transport.watch(self._announcer)


class _LastStored(Announcer):
    _last: Any = None

    def _event(self, request: Request, index: int) -> BlockStored:
        event = super()._event(request, index)
        event.parent_block_hash, self._last = self._last, event.block_hashes[-1]
        return event


class _ParentIsLastStored(_Announces):
    announcer_class = _LastStored


class ParentIsLastStored(AscendConnector):
    """A block's parent is the one that was stored before it (KVC-903; B-122)."""

    scheduler_half_class = _ParentIsLastStored


class _ByText(Announcer):
    def _event(self, request: Request, index: int) -> BlockStored:
        event: Any = super()._event(request, index)
        event.block_hashes = [bytes(request.block_hashes[index]).hex()]
        return event


class _NamesAreText(_Announces):
    announcer_class = _ByText


class NamesAreText(AscendConnector):
    """Blocks are named by their hashes in hexadecimal (KVC-903)."""

    scheduler_half_class = _NamesAreText


class _Kept(Announcer):
    def take(self) -> list[KVCacheEvent]:
        return list(self._events)


class _KeepsEvents(_Announces):
    announcer_class = _Kept


class KeepsEvents(AscendConnector):
    """Events are read, and not taken (KVC-904)."""

    scheduler_half_class = _KeepsEvents


class _Early(Announcer):
    def expect(self, job_id: str, request: Request, blocks: Any) -> None:
        super().expect(job_id, request, blocks)
        super().stored(job_id, list(self._expected[job_id]))

    def stored(self, holder: str, keys: Any) -> None:
        pass


class _AnnouncesPlans(_Announces):
    announcer_class = _Early


class AnnouncesPlans(AscendConnector):
    """Blocks are announced when their save is planned (KVC-905; B-122)."""

    scheduler_half_class = _AnnouncesPlans


class _NeverRemoved(Announcer):
    def removed(self, key: bytes) -> None:
        pass


class _EvictsInSilence(_Announces):
    announcer_class = _NeverRemoved


class EvictsInSilence(AscendConnector):
    """What the store evicts stays announced (KVC-905; B-122)."""

    scheduler_half_class = _EvictsInSilence


class _Whatever(Announcer):
    def __init__(self, block_size: int) -> None:
        super().__init__(block_size)
        self._names: dict[bytes, Any] = {}

    def expect(self, job_id: str, request: Request, blocks: Any) -> None:
        super().expect(job_id, request, blocks)
        self._names |= {key: e.block_hashes[0] for key, e in self._expected[job_id].items()}

    def removed(self, key: bytes) -> None:
        if key in self._names:
            self._announced.setdefault(key, self._names[key])
        super().removed(key)

    def stored(self, holder: str, keys: Any) -> None:
        super().stored(holder, keys[:1])


class _FirstOfMany(_Announces):
    announcer_class = _Whatever


class FirstOfMany(AscendConnector):
    """Of a save the first block is announced, of a removal every one (KVC-905)."""

    scheduler_half_class = _FirstOfMany


# -- from the workers -----------------------------------------------------------------------------


class _ReportsAgain(WorkerHalf):
    def build_connector_worker_meta(self) -> WorkerReport | None:
        return WorkerReport(dict(self._closings)) if self._closings else None


class ReportsAgain(AscendConnector):
    """What has closed is told to the scheduler half in each step (KVC-906)."""

    worker_half_class = _ReportsAgain


@dataclass(frozen=True)
class _InPlace(WorkerReport):
    def aggregate(self, other: KVConnectorMetadata) -> Any:
        merged: Any = self.closings
        assert isinstance(other, WorkerReport)
        for job_id, theirs in other.closings.items():
            mine = merged.get(job_id, Closing(0, False))
            merged[job_id] = Closing(mine.ranks + theirs.ranks, mine.failed or theirs.failed)


class _AddsInPlace(WorkerHalf):
    def build_connector_worker_meta(self) -> WorkerReport | None:
        report = super().build_connector_worker_meta()
        return _InPlace(report.closings) if report is not None else None


class AddsInPlace(AscendConnector):
    """Reports of ranks are added up in place, and nothing is returned (KVC-906)."""

    worker_half_class = _AddsInPlace


class _OwnErrors(WorkerHalf):
    def get_block_ids_with_load_errors(self) -> set[int]:
        return self._load_errors

    def begin_step(self, step: Any) -> None:
        self._load_errors.clear()
        super().begin_step(step)


class OwnErrors(AscendConnector):
    """Answers the set in which it gathers failed blocks, and clears it in the next step.

    KVC-907.
    """

    worker_half_class = _OwnErrors


class _OwnTable(WorkerHalf):
    def build_connector_worker_meta(self) -> WorkerReport | None:
        return WorkerReport(self._closings) if self._closings else None

    def begin_step(self, step: Any) -> None:
        self._closings.clear()
        super().begin_step(step)


class OwnTable(AscendConnector):
    """The report to the scheduler half holds the table that the next step clears (KVC-907)."""

    worker_half_class = _OwnTable
