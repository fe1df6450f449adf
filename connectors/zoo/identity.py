"""Keys that are the same for what differs, or differ for what is the same."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np

from kvconform.connectors.ascend.connector import AscendConnector
from kvconform.connectors.ascend.scheduler import SchedulerHalf

if TYPE_CHECKING:
    from vllm.v1.request import Request


class _ForgetsAdapters(SchedulerHalf):
    def _keys(self, request: Request, start: int) -> list[bytes]:
        size = self.settings.block_size
        stops = range((start + 1) * size, request.num_tokens + 1, size)
        tokens = np.array(request.all_token_ids)
        salt = (request.cache_salt or "").encode()
        return [hashlib.sha256(salt + tokens[:stop].tobytes()).digest() for stop in stops]


class ForgetsAdapters(AscendConnector):
    """Keys are hashes of salt and tokens, without the adapter (B-096)."""

    scheduler_half_class = _ForgetsAdapters


class _HexInOneHalf(SchedulerHalf):
    saving = False

    def _keys(self, request: Request, start: int) -> list[bytes]:
        keys = super()._keys(request, start)
        return [key.hex().encode() for key in keys] if self.saving else keys

    def _save(self, request: Request, life: Any, block_ids: list[int]) -> bool:
        self.saving = True
        saves = super()._save(request, life, block_ids)
        self.saving = False
        return saves


class HexInOneHalf(AscendConnector):
    """Keys are text where KV is saved, and bytes where it is looked up (B-180)."""

    scheduler_half_class = _HexInOneHalf
