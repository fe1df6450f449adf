"""KV events: which blocks the store holds, for whoever routes requests to where their KV is.

The store says what becomes of its blocks, in the order in which it happens; here that turns into
vLLM's events. An engine announces what it has saved itself, and its removal; a block that another
engine over the same store has saved is that one's to announce. So each block is stored, removed,
stored in turn, and what an engine that rests has not handed out yet is bounded by what it saved.

Each block is announced by itself: its parent is the block before it in the request, wherever that
one is, for of a chain only what is missing is saved (``reserve``). Blocks are named as vLLM names
them in its own events, so that a router finds both under one name.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_events import BlockRemoved, BlockStored, KVCacheEvent
from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash

if TYPE_CHECKING:
    from vllm.v1.request import Request

_MEDIUM = "CPU"


class Announcer:
    """Collects the events of one engine.

    Its methods that the store calls (``stored``, ``removed``) may come from another engine's
    thread, with the store's lock held; they only look things up.

    Args:
        block_size: tokens per block.
    """

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._expected: dict[str, dict[bytes, BlockStored]] = {}  # by the job that saves them
        self._announced: dict[bytes, Any] = {}  # by key, the name of the block
        self._events: deque[KVCacheEvent] = deque()

    def expect(self, job_id: str, request: Request, blocks: Mapping[bytes, int]) -> None:
        """A job saves these blocks of the request: by key in the store, their indices."""
        self._expected[job_id] = {key: self._event(request, i) for key, i in blocks.items()}

    def settled(self, job_id: str) -> None:
        """Nothing more of this job will be stored (an unknown one is fine)."""
        self._expected.pop(job_id, None)

    def _event(self, request: Request, index: int) -> BlockStored:
        start = index * self._block_size
        adapter = request.lora_request
        # Some releases also name the adapter.
        named = "lora_name" in BlockStored.__struct_fields__
        more: dict[str, Any] = {"lora_name": adapter and adapter.lora_name} if named else {}
        return BlockStored(
            block_hashes=[maybe_convert_block_hash(request.block_hashes[index])],
            parent_block_hash=maybe_convert_block_hash(request.block_hashes[index - 1])
            if index
            else None,
            token_ids=list(request.all_token_ids[start : start + self._block_size]),
            block_size=self._block_size,
            lora_id=adapter.adapter_id if adapter is not None else None,
            medium=_MEDIUM,
            **more,
        )

    # -- called by the store ----------------------------------------------------------------------

    def stored(self, holder: str, keys: Sequence[bytes]) -> None:
        """What this holder has saved can be found from now on."""
        expected = self._expected.get(holder, {})
        for key in keys:
            if key in expected:
                self._announced[key] = expected[key].block_hashes[0]
                self._events.append(expected[key])

    def removed(self, key: bytes) -> None:
        """It is not found any more."""
        name = self._announced.pop(key, None)
        if name is not None:
            self._events.append(BlockRemoved(block_hashes=[name], medium=_MEDIUM))

    # -- called by vLLM ---------------------------------------------------------------------------

    def take(self) -> list[KVCacheEvent]:
        """What has happened since it was last asked, each event exactly once."""
        return [self._events.popleft() for _ in range(len(self._events))]
