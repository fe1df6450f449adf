"""KV cache groups beside the first one: which of their blocks are needed, and under which keys.

The first group is of full attention: it needs every block of a prefix. A group with a sliding
window needs those only that the next token looks back at; vLLM gives the others back, and a null
block stands for them in its table. What is promised has to be there in every group.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1 import base

NULL_BLOCK = 0
"""Stands in a table for a block that its group does not need."""

NAMES_FAILED_REQUESTS = hasattr(base.KVConnectorBase_V1, "get_transfer_results")
"""Whether this vLLM can be told that the load of a request has failed (since 0.32).

With several groups it can be told of it in no other way: block ids say nothing of a request then.
"""

LOADS_SEVERAL = hasattr(base.KVConnectorBase_V1, "build_connector_worker_meta")
"""Whether this vLLM can load several groups: it came with that hook, in 0.18.

To 0.13 a load would have to fill what no window sees, and 0.17 dies when one has ended.
"""

if hasattr(base, "SupportsHMA"):
    SupportsHMA = base.SupportsHMA
else:  # 0.11.0 has one group

    class SupportsHMA:  # type: ignore[no-redef]
        """Takes block ids of several groups."""


@dataclass(frozen=True)
class Groups:
    """The KV cache groups of an engine.

    Attributes:
        block_size: tokens per block, in all of them.
        windows: per group: 0 for full attention, or the tokens that a token sees, itself included.
    """

    block_size: int
    windows: tuple[int, ...] = (0,)

    @property
    def are_several(self) -> bool:
        """Whether there is more than the first one."""
        return len(self.windows) > 1

    def first(self, group: int, tokens: int) -> int:
        """Index of the first block that a group needs to go on behind so many tokens."""
        window = self.windows[group]
        return max(0, tokens - window + 1) // self.block_size if window else 0

    def others(self, start: int, tokens: int) -> Iterator[tuple[int, int]]:
        """Group and index of the blocks from block ``start`` on that the groups beside the first
        one need to go on behind so many tokens."""
        stop = -(-tokens // self.block_size)
        for group in range(1, len(self.windows)):
            for index in range(max(start, self.first(group, tokens)), stop):
                yield group, index

    def can_end(self, tokens: int, total: int) -> bool:
        """Whether a load may end behind so many tokens of a request that has ``total``.

        Behind all of them vLLM computes the last one once more, and has given back what that sees
        but the next one would not.
        """
        groups = range(1, len(self.windows))
        return tokens < total or all(
            self.first(group, total) == self.first(group, total - 1) for group in groups
        )

    @staticmethod
    def is_there(block: int) -> bool:
        """Whether a table has a block here."""
        return block != NULL_BLOCK

    @staticmethod
    def key(group: int, block_hash: bytes) -> bytes:
        """The name in the store of a block of a group; of the first group it is the hash itself."""
        return bytes(block_hash) + bytes([group] if group else [])


def are_there(tables: Sequence[Sequence[int]], places: Sequence[tuple[int, int]]) -> bool:
    """Whether these tables have a block, none that is null, at each place (group, index)."""
    return all(
        group < len(tables) and index < len(tables[group]) and tables[group][index] != NULL_BLOCK
        for group, index in places
    )


def check_loads(vllm_config: Any) -> None:
    """Refuse several groups where this vLLM cannot load them, or not in this role.

    Raises:
        ValueError: it cannot.
    """
    if not LOADS_SEVERAL:
        raise ValueError("AscendConnector serves one KV cache group with this vLLM")
    transfer = vllm_config.kv_transfer_config
    apart = not (transfer.is_kv_producer and transfer.is_kv_consumer)
    if apart and not NAMES_FAILED_REQUESTS:
        raise ValueError(
            "AscendConnector passes KV of several KV cache groups between engines only with a vLLM "
            "that can be told of failed requests (0.32)"
        )
