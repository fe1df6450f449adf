"""The device that a rank turns out to have: known when vLLM registers its KV, and not before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kvconform.connectors.ascend.device import CpuDevice, Device, Mark
from kvconform.connectors.ascend.npu import NpuDevice
from kvconform.connectors.ascend.planes import KVCache, named_tensors
from kvconform.connectors.ascend.store import Shard


class RankDevice:
    """See ``Device``: an NPU if the KV is on one, else the host.

    Args:
        npu_class: what an NPU's KV is copied by.
        staging_blocks: see ``settings``.
    """

    def __init__(self, npu_class: type[NpuDevice], staging_blocks: int) -> None:
        self._npu_class = npu_class
        self._staging_blocks = staging_blocks
        self._device: Device = CpuDevice()

    def register_kv_caches(self, kv_caches: Mapping[str, KVCache], num_blocks: int | None) -> None:
        """See ``Device``.

        Raises:
            ValueError: the KV lies on a device that nobody here can copy from.
        """
        kinds = {tensor.device.type for _, tensor in named_tensors(kv_caches)}
        if len(kinds) > 1 or kinds - {"cpu", "npu"}:  # the host's copies go by address
            raise ValueError(
                f"AscendConnector serves KV on an NPU or on the host, not on {sorted(kinds)}"
            )
        if "npu" in kinds:
            self._device = self._npu_class(self._staging_blocks)
        self._device.register_kv_caches(kv_caches, num_blocks)

    @property
    def takes_time(self) -> bool:
        """See ``Device``."""
        return self._device.takes_time

    @property
    def block_bytes(self) -> int:
        """See ``Device``."""
        return self._device.block_bytes

    @property
    def layout(self) -> str:
        """See ``Device``."""
        return self._device.layout

    def mark(self) -> Mark | None:
        """See ``Device``."""
        return self._device.mark()

    def read(self, block_ids: Sequence[int], after: Mark | None = None) -> list[Shard]:
        """See ``Device``."""
        return self._device.read(block_ids, after)

    def write(
        self, block_ids: Sequence[int], shards: Sequence[Shard], after: Mark | None = None
    ) -> None:
        """See ``Device``."""
        self._device.write(block_ids, shards, after)
