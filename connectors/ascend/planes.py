"""Where the bytes of KV blocks lie: in planes, which hold one dense piece of each block.

A layer is one plane, or several: vllm-ascend keeps K and V in tensors of their own, with MLA the
latent part and the rope part, which differ in size; older backends of vLLM put all of K before all
of V. Two engines that share KV lay it out alike, so a block is its bytes, piece by piece.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

KVCache: TypeAlias = torch.Tensor | Sequence[torch.Tensor]
"""What vLLM registers for a layer: a tensor, or (vllm-ascend) one for each part of its KV."""

Addresses: TypeAlias = npt.NDArray[np.int64]


class Plane(NamedTuple):
    """Memory that holds a dense piece of each block.

    Attributes:
        blocks: the pieces as bytes, ``[num_blocks, size]``.
        address: of block 0's piece.
        stride: from one block's piece to the next one's, in bytes.
        size: of a piece, in bytes.
        kind: what a piece is made of: type, shape, and the order of its dimensions in memory.
    """

    blocks: torch.Tensor
    address: int
    stride: int
    size: int
    kind: str

    @classmethod
    def of(cls, by_block: torch.Tensor) -> Iterator[Plane]:
        """The planes of a tensor ``[num_blocks, ...]``."""
        inner = sorted(range(1, by_block.dim()), key=by_block.stride)
        size = 1
        for dim in inner:
            if by_block.shape[dim] > 1 and by_block.stride(dim) != size:  # there are gaps
                for part in by_block.unbind(inner[-1]):
                    yield from cls.of(part)
                return
            size *= by_block.shape[dim]
        # Dimensions may have any order in memory: to a copy it does not matter which.
        order = [dim for dim in inner if by_block.shape[dim] > 1]
        kind = f"{by_block.dtype} {[*by_block.shape[1:]]} {order}"
        rows = by_block.as_strided((len(by_block), size), (by_block.stride(0), 1))
        rows = rows.view(torch.uint8)
        yield cls(rows, rows.data_ptr(), rows.stride(0), rows.shape[1], kind)


class Planes:
    """The KV memory of one rank.

    Args:
        kv_caches: layer name to its KV: ``[num_blocks, ...]``, or ``[2, num_blocks, ...]``.
        num_blocks: device blocks; None: the first dimension counts them.

    Attributes:
        planes: by size; else in the order of the layers.
        block_bytes: size of one block's KV, all planes.
        layout: names how a block's bytes are made up; engines can share KV if it is the same.
        sizes: of each plane's piece.
        offsets: where in a block's bytes it begins.

    Raises:
        ValueError: no dimension of a tensor counts blocks.
    """

    def __init__(self, kv_caches: Mapping[str, KVCache], num_blocks: int | None) -> None:
        found = [
            plane
            for name, tensor in named_tensors(kv_caches)
            for by_block in _by_block(name, tensor, num_blocks)
            for plane in Plane.of(by_block)
        ]
        # Layers of different groups share their memory, block by block: once is enough.
        once = {(plane.address, plane.stride, plane.size): plane for plane in found}
        self.planes = sorted(once.values(), key=lambda plane: plane.size)
        kinds = "\n".join(plane.kind for plane in self.planes)
        self.layout = hashlib.sha256(kinds.encode()).hexdigest()[:16]
        self.num_blocks = min((len(plane.blocks) for plane in self.planes), default=0)
        self.sizes = np.array([plane.size for plane in self.planes], np.int64)
        self.offsets = np.cumsum(self.sizes) - self.sizes
        self.block_bytes = int(self.sizes.sum())
        self._bases = np.array([plane.address for plane in self.planes], np.int64)
        self._strides = np.array([plane.stride for plane in self.planes], np.int64)

    def addresses(self, block_ids: Sequence[int]) -> Addresses:
        """Where the pieces of these blocks begin: ``[len(block_ids), len(planes)]``.

        Raises:
            IndexError: there is no such block.
        """
        blocks = np.array(block_ids, np.int64)
        if len(blocks) and not 0 <= blocks.min() <= blocks.max() < self.num_blocks:
            raise IndexError(f"blocks {list(block_ids)} of {self.num_blocks}")
        return self._bases + blocks[:, None] * self._strides


class HostPlanes(Planes):
    """Planes in host memory: one index gathers, or scatters, all pieces of a block.

    A torch copy of each piece takes ten times as long where pieces have a few KiB.
    """

    def __init__(self, kv_caches: Mapping[str, KVCache], num_blocks: int | None) -> None:
        super().__init__(kv_caches, num_blocks)
        alike = [list(group) for _, group in groupby(self.planes, lambda plane: plane.size)]
        ends = np.cumsum([len(group) for group in alike])
        self._windows = [
            _Window(group, slice(end - len(group), end), self.offsets[end - len(group)])
            for group, end in zip(alike, ends, strict=True)
        ]

    def gather(self, block_ids: Sequence[int]) -> list[npt.NDArray[np.uint8]]:
        """The bytes of each of these blocks, in new memory."""
        parts = [window.gather(self.addresses(block_ids)) for window in self._windows]
        if len(parts) == 1:
            return parts[0]
        return [np.concatenate(pieces) for pieces in zip(*parts, strict=True)]

    def scatter(self, block_ids: Sequence[int], blocks: Sequence[npt.NDArray[np.uint8]]) -> None:
        """Overwrite these blocks."""
        for window in self._windows:
            window.scatter(self.addresses(block_ids), blocks)


class _Window:
    """Planes whose pieces are of one size, seen as a single array of such pieces.

    It spans all their memory, in steps that meet every piece. What lies between them, or across two
    of them, is in it too and never touched.

    Args:
        planes: which.
        columns: where their addresses are in a row of ``Planes.addresses``.
        offset: where their pieces begin in the bytes of a block.
    """

    def __init__(self, planes: Sequence[Plane], columns: slice, offset: int) -> None:
        size = planes[0].size
        self._columns = columns
        self._bytes = slice(offset, offset + size * len(planes))
        self._first = min(plane.address for plane in planes)
        steps = [n for p in planes for n in (p.address - self._first, p.stride)]
        self._step = int(np.gcd.reduce(steps)) or size
        span = max(p.address + (len(p.blocks) - 1) * p.stride for p in planes) - self._first
        memory = memoryview((ctypes.c_uint8 * (span + size)).from_address(self._first))
        self._pieces: Any = np.ndarray(
            (span // self._step + 1,), np.dtype(f"V{size}"), memory, strides=(self._step,)
        )

    def gather(self, addresses: Addresses) -> list[npt.NDArray[np.uint8]]:
        return [self._pieces[row].view(np.uint8) for row in self._rows(addresses)]

    def scatter(self, addresses: Addresses, blocks: Sequence[npt.NDArray[np.uint8]]) -> None:
        for row, block in zip(self._rows(addresses), blocks, strict=True):
            self._pieces[row] = block[self._bytes].view(self._pieces.dtype)

    def _rows(self, addresses: Addresses) -> Addresses:
        return (addresses[:, self._columns] - self._first) // self._step


def named_tensors(kv_caches: Mapping[str, KVCache]) -> Iterator[tuple[str, torch.Tensor]]:
    """All tensors, with the names of their layers."""
    for name, cache in kv_caches.items():
        for tensor in [cache] if isinstance(cache, torch.Tensor) else cache:
            yield name, tensor


def _by_block(name: str, tensor: torch.Tensor, num_blocks: int | None) -> Sequence[torch.Tensor]:
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
