"""Which block here belongs to which block there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kvconform.connectors.ascend.connector import AscendConnector
from kvconform.connectors.ascend.metadata import Direction
from kvconform.connectors.ascend.scheduler import SchedulerHalf

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.request import Request

Finish = tuple[bool, dict[str, Any] | None]
Lookup = tuple[int | None, bool]
Blocks = Sequence[int]


class _Pairs(SchedulerHalf):
    """Pairs anew what is pulled; as it stands, in the same way as ever."""

    def _plan(
        self, job_id: str, request: Request, life: Any, direction: Direction,
        keys: Sequence[bytes], block_ids: Blocks, wait: bool = False, source: Any = None,
    ) -> None:  # fmt: skip
        if direction == "pull" and source.block_ids:
            there = (request.kv_transfer_params or {})["remote_block_ids"]
            block_ids, there = self._pair(request, life.local_blocks, block_ids, there)
            source = replace(source, block_ids=tuple(there))
        super()._plan(job_id, request, life, direction, keys, block_ids, wait, source)

    def _pair(
        self, request: Request, start: int, here: Blocks, there: Blocks
    ) -> tuple[Blocks, Blocks]:
        return here, there[start : start + len(here)]


class _FromTheEnd(_Pairs):
    def _pair(
        self, request: Request, start: int, here: Blocks, there: Blocks
    ) -> tuple[Blocks, Blocks]:
        return here, there[-len(here) :]


class FromTheEnd(AscendConnector):
    """Blocks are paired from the end, as if both lists ended with the same token (B-081)."""

    scheduler_half_class = _FromTheEnd


class _OffersAllBlocks(_FromTheEnd):
    def _offer(self, request: Request, life: Any, block_ids: list[int]) -> dict[str, Any] | None:
        params = super()._offer(request, life, block_ids)
        return params and params | {"remote_block_ids": list(block_ids)}


class OffersAllBlocks(AscendConnector):
    """All blocks of a request are offered, also those beyond its prompt, and paired by position.

    B-013.
    """

    scheduler_half_class = _OffersAllBlocks


class _FromTheStart(_Pairs):
    def _pair(
        self, request: Request, start: int, here: Blocks, there: Blocks
    ) -> tuple[Blocks, Blocks]:
        return here, there[: len(here)]


class FromTheStart(AscendConnector):
    """Blocks are paired as if nothing were ever found where it decodes (B-167)."""

    scheduler_half_class = _FromTheStart


class _AssumesNothingLocal(SchedulerHalf):
    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> Lookup:
        if (request.kv_transfer_params or {}).get("do_remote_prefill"):
            assert num_computed_tokens == 0, "a prefix was found where it decodes"
        return super().get_num_new_matched_tokens(request, num_computed_tokens)


class AssumesNothingLocal(AscendConnector):
    """Where it decodes, no prefix must be found locally (B-167)."""

    scheduler_half_class = _AssumesNothingLocal


class _LeavesTheTail(_Pairs):
    def _pair(
        self, request: Request, start: int, here: Blocks, there: Blocks
    ) -> tuple[Blocks, Blocks]:
        whole = request.num_prompt_tokens // self.settings.block_size - start
        return super()._pair(request, start, here[:whole], there)


class LeavesTheTail(AscendConnector):
    """Only whole blocks are transferred, and the tokens behind them are promised all the same.

    B-077.
    """

    scheduler_half_class = _LeavesTheTail


class _FirstChunkOnly(_Pairs):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._blocks: dict[str, list[int]] = {}

    def update_state_after_alloc(
        self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int
    ) -> None:
        self._blocks[request.request_id] = list(blocks.get_block_ids()[0])
        super().update_state_after_alloc(request, blocks, num_external_tokens)

    def request_finished(self, request: Request, block_ids: list[int]) -> Finish:
        delayed, params = super().request_finished(request, block_ids)
        blocks = self._blocks.pop(request.request_id, [])
        return delayed, params and params | {"remote_block_ids": blocks}

    def _pair(
        self, request: Request, start: int, here: Blocks, there: Blocks
    ) -> tuple[Blocks, Blocks]:
        here, there = super()._pair(request, start, here, there)
        return here[: len(there)], there


class FirstChunkOnly(AscendConnector):
    """The blocks to hand over are noted at admission: those of later chunks are missing (B-076)."""

    scheduler_half_class = _FirstChunkOnly
