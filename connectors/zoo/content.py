"""KV that is not what its key says."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from kvconform.connectors.ascend.connector import AscendConnector
from kvconform.connectors.ascend.metadata import Direction
from kvconform.connectors.ascend.scheduler import SchedulerHalf
from kvconform.connectors.ascend.worker import WorkerHalf

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.request import Request

Finish = tuple[bool, dict[str, Any] | None]
Lookup = tuple[int | None, bool]
Finished = tuple[set[str] | None, set[str] | None]


class _HashesTokens(SchedulerHalf):
    def _keys(self, request: Request, start: int) -> list[bytes]:
        size = self.settings.block_size
        stops = range((start + 1) * size, request.num_tokens + 1, size)
        tokens = np.array(request.all_token_ids)
        return [hashlib.sha256(tokens[:stop].tobytes()).digest() for stop in stops]


class KeysOfTokens(AscendConnector):
    """Keys are hashes of the tokens, without the salt.

    KVC-504; B-096.
    """

    scheduler_half_class = _HashesTokens


class _DoesNotWait(WorkerHalf):
    def start_load_kv(self) -> None:
        for job in self._start("load"):
            if job.wait:
                self.unreported = self.unreported | {job.request_id}

    unreported: frozenset[str] = frozenset()

    def get_finished(self, finished_req_ids: set[str]) -> Finished:
        sending, recving = super().get_finished(finished_req_ids)
        return sending, (recving or set()) - self.unreported or None


class DoesNotWait(AscendConnector):
    """A synchronous load is started, and not waited for (KVC-501; B-203)."""

    worker_half_class = _DoesNotWait


class _SavesTheLastToken(SchedulerHalf):
    def _final_blocks(self, request: Request, block_ids: list[int]) -> int:
        return min(len(block_ids), len(request.block_hashes))


class SavesTheLastToken(AscendConnector):
    """The token sampled last counts as computed, and its block is saved (KVC-501; B-163)."""

    scheduler_half_class = _SavesTheLastToken


class ResetInNameOnly(AscendConnector):
    """The store is somebody else's: a reset does nothing, and says that all is well.

    KVC-801; B-050.
    """

    def reset_cache(self) -> bool:
        return True


class _TrimsTwice(SchedulerHalf):
    def _promise(self, request: Request, local: int, found: int) -> tuple[int, bool]:
        return super()._promise(request, local, max(0, found - 1))

    def _plan(
        self, job_id: str, request: Request, life: Any, direction: Direction,
        keys: Sequence[bytes], block_ids: Sequence[int], *rest: Any, **more: Any,
    ) -> None:  # fmt: skip
        if direction == "load":
            keys, block_ids = keys[:-1], block_ids[:-1]
        super()._plan(job_id, request, life, direction, keys, block_ids, *rest, **more)


class TrimsTwice(AscendConnector):
    """The last block is left out of what is promised, and again of what is loaded.

    KVC-501; B-132.
    """

    scheduler_half_class = _TrimsTwice


class _AllButOneToken(SchedulerHalf):
    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> Lookup:
        tokens, in_background = super().get_num_new_matched_tokens(request, num_computed_tokens)
        if tokens and num_computed_tokens + tokens == request.num_tokens:
            tokens -= 1
        return tokens, in_background

    def update_state_after_alloc(
        self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int
    ) -> None:
        size = self.settings.block_size
        super().update_state_after_alloc(request, blocks, num_external_tokens // size * size)


class AllButOneToken(AscendConnector):
    """Of a whole prompt all tokens but one are promised, and all blocks but one are loaded.

    KVC-501; B-133.
    """

    scheduler_half_class = _AllButOneToken


class _FetchesAhead(SchedulerHalf):
    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> Lookup:
        self.__dict__.setdefault("_fetched", {})[request.request_id] = self._keys(request, 0)
        return super().get_num_new_matched_tokens(request, num_computed_tokens)

    def _plan(
        self, job_id: str, request: Request, life: Any, direction: Direction,
        keys: Sequence[bytes], *rest: Any, **more: Any,
    ) -> None:  # fmt: skip
        if direction == "load":
            keys = self.__dict__["_fetched"][request.request_id][: len(keys)]
            self.transport.pin(job_id, keys)
        super()._plan(job_id, request, life, direction, keys, *rest, **more)


class FetchesAhead(AscendConnector):
    """What the lookup fetched begins with the prompt, what is loaded with the first block missing.

    KVC-501; B-160.
    """

    scheduler_half_class = _FetchesAhead


class _CarriesOpenSaves(SchedulerHalf):
    def reset_cache(self) -> bool:
        done = super().reset_cache()
        for opened in self._open.values():
            if opened.job.direction == "save":
                self.transport.reserve(opened.job.job_id, opened.job.keys)
        return done


class CarriesOpenSaves(AscendConnector):
    """A reset empties the store, and saves that are under way go into it as if nothing had been.

    KVC-801; B-139.
    """

    scheduler_half_class = _CarriesOpenSaves
