"""Mistakes that take several KV groups to show."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

from kvconform.connectors.ascend.connector import AscendConnector
from kvconform.connectors.ascend.groups import Groups
from kvconform.connectors.ascend.lives import Tables
from kvconform.connectors.ascend.scheduler import SchedulerHalf
from kvconform.connectors.ascend.transport import Outcome
from kvconform.connectors.ascend.worker import WorkerHalf

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.request import Request


class _SaysNothing(WorkerHalf):
    def take_failed_requests(self) -> set[str]:
        super().take_failed_requests()
        return set()


class SaysNothingOfGroups(AscendConnector):
    """With several groups a failed load is completed, and that is all (KVC-601; B-026)."""

    worker_half_class = _SaysNothing


class _NamesBlocks(WorkerHalf):
    def _close(self, outcome: Outcome) -> None:
        super()._close(outcome)
        if self._failed_requests:
            self._failed_requests.clear()
            self._load_errors.update(outcome.failed_block_ids)


class NamesBlocksOfGroups(AscendConnector):
    """Failed loads are reported block by block, whatever the groups (KVC-604; B-025)."""

    worker_half_class = _NamesBlocks


class _OtherGroups(SchedulerHalf):
    """Takes the groups for something else than they are."""

    groups_class: ClassVar[type[Groups]]

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.groups = self.groups_class(self.groups.block_size, self.groups.windows)


class _NoOthers(Groups):
    def others(self, start: int, tokens: int) -> Iterator[tuple[int, int]]:
        return iter(())


class _FirstOnly(_OtherGroups):
    groups_class = _NoOthers


class PromisesTheLongestGroup(AscendConnector):
    """What the first group finds is promised for all, and loaded for it alone (KVC-804; B-049)."""

    scheduler_half_class = _FirstOnly


class _Rounded(Groups):
    def first(self, group: int, tokens: int) -> int:
        return -(-max(0, tokens - self.windows[group] + 1) // self.block_size)


class _RoundsUp(_OtherGroups):
    groups_class = _Rounded


class RoundsTheWindow(AscendConnector):
    """A block that the window sees in part is not loaded (KVC-804)."""

    scheduler_half_class = _RoundsUp


class _OneName(Groups):
    @staticmethod
    def key(group: int, block_hash: bytes) -> bytes:
        return bytes(block_hash)


class _NamesAlike(_OtherGroups):
    groups_class = _OneName


class OneKeyForAllGroups(AscendConnector):
    """Blocks of all groups have the same name in the store (KVC-501)."""

    scheduler_half_class = _NamesAlike


class _NullsToo(Groups):
    def first(self, group: int, tokens: int) -> int:
        return 0

    @staticmethod
    def is_there(block: int) -> bool:
        return True


class _KnowsNoNull(_OtherGroups):
    groups_class = _NullsToo


class SavesNullBlocks(AscendConnector):
    """A table is taken as it is, null blocks and all (KVC-803)."""

    scheduler_half_class = _KnowsNoNull


class _ChecksLess(SchedulerHalf):
    def _found_in_all(self, request: Request, start: int, found: int) -> int:
        size = self.settings.block_size
        for count in range(found, 0, -1):
            keys = self._keys_of_others(request, start, (start + count) * size)[1:]
            if self.transport.lookup(keys) == len(keys):
                return count
        return 0


class LooksUpLessThanItLoads(AscendConnector):
    """The lookup asks for one block of the window less than the load needs (KVC-108; B-120)."""

    scheduler_half_class = _ChecksLess


class _DropsPerGroup(SchedulerHalf):
    def _found_in_all(self, request: Request, start: int, found: int) -> int:
        kept = super()._found_in_all(request, start, found)
        return max(0, kept - len(self.groups.windows))


class DropsABlockPerGroup(AscendConnector):
    """A block is dropped from what was found, once for each group, and without looking again.

    KVC-505; B-119.
    """

    scheduler_half_class = _DropsPerGroup


class _Untrimmed(SchedulerHalf):
    def end_of_other_groups(self, request: Request, tables: Tables) -> None:
        surplus = len(tables[0]) - self._final_blocks(request, list(tables[0]))
        shifted = (table[surplus:] for table in tables[1:])
        super().end_of_other_groups(request, (tables[0], *shifted))


class ExportsTheUntrimmedTail(AscendConnector):
    """Of a window the last blocks are taken, before what is not complete is cut off.

    KVC-501; B-177.
    """

    scheduler_half_class = _Untrimmed


class _WithoutTheLast(SchedulerHalf):
    def end_of_other_groups(self, request: Request, tables: Tables) -> None:
        final = self._final_blocks(request, list(tables[0]))
        cut = (table[: max(0, final - 1)] for table in tables[1:])
        super().end_of_other_groups(request, (tables[0], *cut))


class NeverSavesTheLast(AscendConnector):
    """Of the other groups the block that was complete last is never saved (KVC-505; B-190)."""

    scheduler_half_class = _WithoutTheLast


class _MistakesTables(SchedulerHalf):
    """Looks for blocks in tables that are not the groups' own."""

    def update_state_after_alloc(
        self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int
    ) -> None:
        tables = self._mistaken(blocks.get_block_ids())
        taken: Any = SimpleNamespace(get_block_ids=lambda: tables)
        super().update_state_after_alloc(request, taken, num_external_tokens)

    def _mistaken(self, tables: Tables) -> Tables:
        raise NotImplementedError


class _FirstTable(_MistakesTables):
    def _mistaken(self, tables: Tables) -> Tables:
        return [tables[0]] * len(tables)


class OneTableForAll(AscendConnector):
    """Blocks of every group are looked for in the first one's table (KVC-804; B-179)."""

    scheduler_half_class = _FirstTable


class _Nominal(_MistakesTables):
    def _mistaken(self, tables: Tables) -> Tables:
        return [_appended(table) for table in tables]


def _appended(table: Sequence[int]) -> list[int]:
    """The blocks that a table has, in as many places as if none were null."""
    blocks = [block for block in table if block]
    return [*blocks, *blocks[-1:] * (len(table) - len(blocks))]


class CountsNominalBlocks(AscendConnector):
    """Places in a table are counted as if the null blocks had been left out of it.

    KVC-804; B-114.
    """

    scheduler_half_class = _Nominal
