"""Copies of blocks between a device and the host, for every layout of KV."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kvconform.connectors.ascend.device import CpuDevice
from kvconform.connectors.ascend.npu import NpuDevice
from kvconform.connectors.ascend.planes import KVCache, Plane, Planes
from kvconform.connectors.ascend.rank import RankDevice


def make(cache: KVCache, num_blocks: int | None = 4) -> CpuDevice:
    device = CpuDevice()
    device.register_kv_caches({"layer": cache}, num_blocks)
    return device


def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A tensor in which no two elements are equal."""
    return torch.arange(torch.Size(shape).numel()).reshape(shape).to(dtype)


LAYOUTS: dict[str, KVCache] = {
    "one tensor": numbers(4, 3, 2, 8),
    "K and V apart": (numbers(4, 3, 2, 8), numbers(4, 3, 2, 8) + 1000),
    "latent and rope": (numbers(4, 3, 1, 16), numbers(4, 3, 1, 2) + 1000),
    "of two types": (numbers(4, 3), numbers(4, 5, dtype=torch.int8)),
    "heads before tokens": numbers(4, 3, 2, 8).transpose(1, 2),
    "layers in one block": numbers(4, 2, 3, 8)[:, 1],
    "K beside V": numbers(4, 3, 2, 16)[..., 8:],
    "smaller kernel blocks": numbers(8, 3),
    "a single one": numbers(4, 1),
}


def blocks_of(cache: KVCache) -> list[list[float]]:
    """The numbers of each block."""
    tensors = [cache] if isinstance(cache, torch.Tensor) else cache
    return [
        [float(n) for t in tensors for n in t.reshape(4, -1)[block].flatten()] for block in range(4)
    ]


def copy_of(cache: KVCache) -> Any:
    """The same numbers, laid out alike, in memory of their own."""

    def copied(tensor: torch.Tensor) -> torch.Tensor:
        size = tensor.untyped_storage().size() // tensor.itemsize
        memory = torch.full((size,), -1, dtype=tensor.dtype)
        return memory.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()).copy_(
            tensor
        )

    return copied(cache) if isinstance(cache, torch.Tensor) else tuple(map(copied, cache))


@pytest.mark.parametrize("name", LAYOUTS)
class TestLayouts:
    def test_blocks_and_nothing_else_are_copied(self, name: str) -> None:
        cache = copy_of(LAYOUTS[name])
        before = blocks_of(cache)
        device = make(cache)
        assert device.block_bytes == sum(
            t.nbytes // 4 for t in ([cache] if isinstance(cache, torch.Tensor) else cache)
        )
        shards = device.read([1, 3])
        assert all(shard.dtype is torch.uint8 for shard in shards)
        device.write([2, 0], shards)
        assert blocks_of(cache) == [before[3], before[1], before[1], before[3]]
        tensors = [cache] if isinstance(cache, torch.Tensor) else cache
        for tensor in tensors:  # what lies between them is what it was
            elements = tensor.untyped_storage().size() // tensor.itemsize
            memory = tensor.as_strided((elements,), (1,), 0)
            assert int((memory == -1).sum()) == elements - tensor.numel()

    def test_what_is_read_does_not_follow_the_device(self, name: str) -> None:
        device = make(copy_of(LAYOUTS[name]))
        first, second = device.read([1, 2])
        device.write([1], [second])
        assert not torch.equal(first, second)
        assert torch.equal(device.read([1])[0], second)

    def test_two_ends_understand_each_other(self, name: str) -> None:
        here, there = copy_of(LAYOUTS[name]), copy_of(LAYOUTS[name])
        assert make(here).layout == make(there).layout
        make(there).write([0], make(here).read([3]))
        assert blocks_of(there)[0] == blocks_of(here)[3]


class TestDevice:
    def test_k_may_come_before_all_v(self) -> None:
        stacked = torch.stack((numbers(4, 1), numbers(4, 1) + 100))
        device = make(stacked)
        device.write([3], device.read([1]))
        assert stacked[:, 3].flatten().tolist() == [1, 101]

    def test_layers_of_two_groups_share_memory(self) -> None:
        device, cache = CpuDevice(), numbers(4, 3)
        device.register_kv_caches({"first": cache, "second": cache}, 4)
        assert device.block_bytes == 12

    def test_a_shape_without_blocks_is_refused(self) -> None:
        with pytest.raises(ValueError, match=r"layer, shape \(5, 3\), counts 4 blocks"):
            make(torch.zeros(5, 3))

    @pytest.mark.parametrize("block", [-1, 4])
    def test_a_block_that_is_none_is_refused(self, block: int) -> None:
        device = make(numbers(4, 3))
        with pytest.raises(IndexError):
            device.read([0, block])
        with pytest.raises(IndexError):
            device.write([0, block], device.read([1, 2]))

    def test_a_shard_of_another_size_is_refused(self) -> None:
        with pytest.raises(ValueError, match="a shard of 8 bytes is no block of 12"):
            make(numbers(4, 3)).write([0], make(numbers(4, 2)).read([0]))

    def test_a_layout_is_told_from_another(self) -> None:
        layouts = [make(cache).layout for cache in LAYOUTS.values()]
        same = {"one tensor": numbers(4, 3, 2, 8) + 5, "K and V apart": LAYOUTS["K and V apart"]}
        assert [make(cache).layout for cache in same.values()] == layouts[:2]
        assert len(set(layouts)) == len(layouts)


def test_addresses_are_those_of_the_pieces() -> None:
    caches = {"one": numbers(4, 6), "two": (numbers(4, 2), numbers(4, 3, 4))}
    planes = Planes(caches, 4)
    assert planes.sizes.tolist() == [8, 24, 48]
    assert planes.offsets.tolist() == [0, 8, 32]
    two: Any = caches["two"]
    pieces = [two[0], caches["one"], two[1]]
    assert planes.addresses([3, 1]).tolist() == [[p[b].data_ptr() for p in pieces] for b in (3, 1)]


def test_a_plane_is_dense() -> None:
    for cache in LAYOUTS.values():
        for tensor in [cache] if isinstance(cache, torch.Tensor) else cache:
            for plane in Plane.of(tensor):
                assert plane.blocks.shape == (len(tensor), plane.size)
                assert plane.blocks.stride(1) == 1


def test_kv_on_another_device_is_refused() -> None:
    there = torch.empty((4, 8), device="meta")
    with pytest.raises(ValueError, match=r"not on \['meta'\]"):
        RankDevice(NpuDevice, 4).register_kv_caches({"layer": there}, 4)
