"""Copies of single KV blocks between device and host: the only code that touches device tensors."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import torch

from kvconform.connectors.ascend.store import Shard

KVCache: TypeAlias = torch.Tensor | Sequence[torch.Tensor]
"""What vLLM registers for a layer: a tensor, or (vllm-ascend) a tensor for K and one for V."""


class Device(Protocol):
    """One rank's KV memory.

    Copies come after every forward launched before, and are complete when the call returns: the
    host may use what was read, and a forward launched afterwards sees what was written.
    """

    def register_kv_caches(self, kv_caches: Mapping[str, KVCache], num_blocks: int | None) -> None:
        """Take the tensors of all layers.

        Args:
            kv_caches: layer name to its KV: ``[num_blocks, ...]``, or ``[2, num_blocks, ...]``.
            num_blocks: device blocks; None: the first dimension counts them.

        Raises:
            ValueError: no dimension of a tensor counts blocks.
        """

    @property
    def block_bytes(self) -> int:
        """Size of one block's KV, all layers."""

    def read(self, block_ids: Sequence[int]) -> list[Shard]:
        """The KV of these blocks, all layers, in new host tensors."""

    def write(self, block_ids: Sequence[int], shards: Sequence[Shard]) -> None:
        """Overwrite the KV of these blocks, all layers."""


class CpuDevice:
    """KV in host memory: a CPU engine, and the twin that stands in for an NPU in tests.

    Plain torch copies, which block the host: also right, if slow, for any other device of torch.
    """

    def __init__(self) -> None:
        self._planes: list[torch.Tensor] = []  # each [num_blocks, ...]

    def register_kv_caches(self, kv_caches: Mapping[str, KVCache], num_blocks: int | None) -> None:
        """See ``Device``."""
        planes = [
            plane
            for name, cache in kv_caches.items()
            for tensor in ([cache] if isinstance(cache, torch.Tensor) else cache)
            for plane in _planes(name, tensor, num_blocks)
        ]
        # Layers of different groups share their memory, block by block: once is enough.
        self._planes = list({(p.data_ptr(), p.shape, p.stride()): p for p in planes}.values())

    @property
    def block_bytes(self) -> int:
        """See ``Device``."""
        return sum(plane[0].numel() * plane.element_size() for plane in self._planes)

    def read(self, block_ids: Sequence[int]) -> list[Shard]:
        """See ``Device``."""
        with self._ordered():
            return [
                tuple(self._to_host(plane[block_id]) for plane in self._planes)
                for block_id in block_ids
            ]

    def write(self, block_ids: Sequence[int], shards: Sequence[Shard]) -> None:
        """See ``Device``."""
        with self._ordered():
            for block_id, shard in zip(block_ids, shards, strict=True):
                for plane, host in zip(self._planes, shard, strict=True):
                    plane[block_id].copy_(host, non_blocking=True)

    def _ordered(self) -> contextlib.AbstractContextManager[None]:
        """The scope of a batch of copies; here the host's own order is enough."""
        return contextlib.nullcontext()

    def _to_host(self, block: torch.Tensor) -> torch.Tensor:
        return block.to("cpu", copy=True)


class NpuDevice(CpuDevice):
    """KV on an Ascend NPU: the same copies on a side stream, between two events.

    Never run on an NPU, for none was at hand: only on the real torch_npu over a simulated CANN
    whose copies are deferred. It uses streams, events and pinned memory, nothing else.
    """

    def __init__(self) -> None:
        super().__init__()
        self._npu: Any = vars(torch)["npu"]  # torch_npu puts it there
        # Copies run in other threads too, each of which begins with device 0 and its own streams.
        self._index = self._npu.current_device()
        self._compute = self._npu.current_stream()
        self._side = self._npu.Stream()

    @contextlib.contextmanager
    def _ordered(self) -> Iterator[None]:
        """Copies wait for the forwards launched so far, and the host for the copies.

        Without the first event a save could read a block that is still being computed, and a load
        could be overwritten by the forward of the block's former owner.
        """
        self._npu.set_device(self._index)
        launched = self._npu.Event()
        launched.record(self._compute)
        self._side.wait_event(launched)
        try:
            with self._npu.stream(self._side):
                yield
        finally:
            copied = self._npu.Event()
            copied.record(self._side)
            copied.synchronize()

    def _to_host(self, block: torch.Tensor) -> torch.Tensor:
        # Only a copy into pinned memory runs beside the compute stream.
        host = torch.empty(block.shape, dtype=block.dtype, device="cpu", pin_memory=True)
        return host.copy_(block, non_blocking=True)


def select_device() -> Device:
    """The device of this process."""
    npu = getattr(torch, "npu", None)
    return NpuDevice() if npu is not None and npu.is_available() else CpuDevice()


def _planes(name: str, tensor: torch.Tensor, num_blocks: int | None) -> Sequence[torch.Tensor]:
    """``tensor`` as views whose first dimension counts the scheduler's blocks."""
    shape = tensor.shape
    if num_blocks is None or shape[0] == num_blocks:
        return [tensor]
    if len(shape) > 1 and shape[0] == 2 and shape[1] == num_blocks:  # K and V first: older backends
        return tensor.unbind(0)
    if shape[0] % num_blocks == 0:  # kernels with smaller blocks than the scheduler's
        return [tensor.unflatten(0, (num_blocks, -1))]
    raise ValueError(
        f"No dimension of the KV cache of {name}, shape {tuple(shape)}, counts {num_blocks} blocks"
    )
