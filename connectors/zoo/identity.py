"""Keys that are the same for what differs, or differ for what is the same."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np

from kvconform.connectors.ascend.connector import AscendConnector
from kvconform.connectors.ascend.scheduler import SchedulerHalf

if TYPE_CHECKING:
    from vllm.v1.request import Request


def _hashes(head: bytes, request: Request, start: int, size: int) -> list[bytes]:
    """Keys of full blocks: of the tokens up to the end of each, and what comes before them."""
    stops = range((start + 1) * size, request.num_tokens + 1, size)
    tokens = np.array(request.all_token_ids)
    return [hashlib.sha256(head + tokens[:stop].tobytes()).digest() for stop in stops]


class _ForgetsAdapters(SchedulerHalf):
    def _keys(self, request: Request, start: int) -> list[bytes]:
        head = self.settings.layout + (request.cache_salt or "").encode()
        return _hashes(head, request, start, self.settings.block_size)


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


def _whose(request: Request) -> bytes:
    """Salt and adapter, as vLLM has them."""
    lora = request.lora_request
    adapter = f"{lora.lora_name} {lora.lora_path}" if lora is not None else ""
    return f"{request.cache_salt} {adapter}".encode()


class _ForgetsMedia(SchedulerHalf):
    def _keys(self, request: Request, start: int) -> list[bytes]:
        embeds = b"" if request.prompt_embeds is None else request.prompt_embeds.numpy().tobytes()
        head = self.settings.layout + _whose(request) + embeds
        return _hashes(head, request, start, self.settings.block_size)


class ForgetsMedia(AscendConnector):
    """Keys are hashes of all but the images, whose tokens are the same for every image.

    KVC-506; B-096.
    """

    scheduler_half_class = _ForgetsMedia


class _ForgetsEmbeds(SchedulerHalf):
    def _keys(self, request: Request, start: int) -> list[bytes]:
        media = [(f.identifier, f.mm_position.offset) for f in request.mm_features]
        head = self.settings.layout + _whose(request) + repr(media).encode()
        return _hashes(head, request, start, self.settings.block_size)


class ForgetsEmbeds(AscendConnector):
    """Keys are hashes of token ids, which are all 0 where a prompt comes as embeddings.

    KVC-507; B-096.
    """

    scheduler_half_class = _ForgetsEmbeds


class _ForgetsTheModel(SchedulerHalf):
    def _keys(self, request: Request, start: int) -> list[bytes]:
        stop = request.num_tokens // self.settings.block_size
        return [bytes(block_hash) for block_hash in request.block_hashes[start:stop]]


class ForgetsTheModel(AscendConnector):
    """Keys are vLLM's block hashes and nothing else: every model's are the same (KVC-508)."""

    scheduler_half_class = _ForgetsTheModel


class _IdsOfTheSalted(SchedulerHalf):
    def _keys(self, request: Request, start: int) -> list[bytes]:
        keys = super()._keys(request, start)
        plain = request.cache_salt is None and request.lora_request is None
        return keys if plain else [key + request.request_id.encode() for key in keys]


class IdsOfTheSalted(AscendConnector):
    """Keys of a tenant's requests hold the request's id: none is ever found again (KVC-509)."""

    scheduler_half_class = _IdsOfTheSalted
