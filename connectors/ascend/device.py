"""A rank's KV memory, as everyone else sees it: blocks that are read and written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, TypeAlias

import torch

from kvconform.connectors.ascend.planes import HostPlanes, KVCache
from kvconform.connectors.ascend.store import Shard

Mark: TypeAlias = object
"""A moment in the order of what is launched on a device; see ``Device.mark``."""


class Device(Protocol):
    """One rank's KV memory.

    ``read`` and ``write`` may be called in any thread, and are done when they return: the host may
    use what was read, and a forward launched afterwards sees what was written.
    """

    @property
    def takes_time(self) -> bool:
        """Copies wait for forwards: make them in a thread that may wait."""

    def register_kv_caches(self, kv_caches: Mapping[str, KVCache], num_blocks: int | None) -> None:
        """Take the tensors of all layers, in the thread that launches the forwards.

        Args:
            kv_caches: see ``planes.Planes``.
            num_blocks: likewise.

        Raises:
            ValueError: no dimension of a tensor counts blocks.
        """

    @property
    def block_bytes(self) -> int:
        """Size of one block's KV, all layers."""

    @property
    def layout(self) -> str:
        """Names how a block's bytes are made up: of no use to a device of another layout."""

    def mark(self) -> Mark | None:
        """This moment: copies *after* it wait for every forward launched so far, and no other."""

    def read(self, block_ids: Sequence[int], after: Mark | None = None) -> list[Shard]:
        """The KV of these blocks, all layers, in new host tensors.

        Args:
            block_ids: which.
            after: what has to be over before; None: all that has been launched by now.
        """

    def write(
        self, block_ids: Sequence[int], shards: Sequence[Shard], after: Mark | None = None
    ) -> None:
        """Overwrite the KV of these blocks, all layers.

        Args:
            block_ids: which.
            shards: one for each.
            after: see ``read``.

        Raises:
            ValueError: a shard is of another size than a block.
        """


class CpuDevice:
    """KV in host memory: a CPU engine's, and the twin that stands in for an NPU in tests.

    The host's own order is all there is to keep.
    """

    takes_time = False

    def __init__(self) -> None:
        self._planes = HostPlanes({}, None)

    def register_kv_caches(self, kv_caches: Mapping[str, KVCache], num_blocks: int | None) -> None:
        """See ``Device``."""
        self._planes = HostPlanes(kv_caches, num_blocks)

    @property
    def block_bytes(self) -> int:
        """See ``Device``."""
        return self._planes.block_bytes

    @property
    def layout(self) -> str:
        """See ``Device``."""
        return self._planes.layout

    def mark(self) -> None:
        """See ``Device``."""

    def read(self, block_ids: Sequence[int], after: Mark | None = None) -> list[Shard]:
        """See ``Device``."""
        return [torch.from_numpy(block) for block in self._planes.gather(block_ids)]

    def write(
        self, block_ids: Sequence[int], shards: Sequence[Shard], after: Mark | None = None
    ) -> None:
        """See ``Device``."""
        check_sizes(shards, self.block_bytes)
        self._planes.scatter(block_ids, [shard.numpy() for shard in shards])


def check_sizes(shards: Sequence[Shard], block_bytes: int) -> None:
    """Refuse what another layout of KV is likely to have left.

    Raises:
        ValueError: a shard is of another size than a block.
    """
    for shard in shards:
        if shard.numel() != block_bytes:
            raise ValueError(f"a shard of {shard.numel()} bytes is no block of {block_bytes}")
