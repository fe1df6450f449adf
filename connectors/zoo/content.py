"""KV that is not what its key says."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np

from kvconform.connectors.ascend.connector import AscendConnector
from kvconform.connectors.ascend.scheduler import SchedulerHalf
from kvconform.connectors.ascend.worker import WorkerHalf

if TYPE_CHECKING:
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
