"""The benchmark of transfers moves what it says, on both sides."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from benchmarks import transfer
from benchmarks.transfer import BLOCK, LAYERS, PLANE, POOL, BareCopy, Side, Through
from kvconform.connectors.ascend.device import CpuDevice
from kvconform.connectors.ascend.store import HostStore
from kvconform.connectors.ascend.transport import LocalTransport

PLANES = [torch.randint(0, 255, (POOL, PLANE), dtype=torch.uint8) for _ in range(LAYERS)]


def make_device() -> CpuDevice:
    device = CpuDevice()
    device.register_kv_caches({str(i): plane for i, plane in enumerate(PLANES)}, POOL)
    return device


def sides() -> Iterator[Side]:
    yield BareCopy(PLANES)
    yield Through(LocalTransport(HostStore(POOL, 1), 0), make_device())


@pytest.mark.parametrize("side", sides(), ids=["bare", "connector"])
def test_what_is_saved_comes_back(side: Side) -> None:
    blocks = [5, 0, 9]
    before = [plane[blocks].clone() for plane in PLANES]
    for _ in range(2):  # the store is emptied between saves
        side.save(blocks)
        for plane in PLANES:
            plane[blocks] = 0
        side.load(blocks)
    assert all(torch.equal(p[blocks], b) for p, b in zip(PLANES, before, strict=True))
    assert make_device().block_bytes == BLOCK


@pytest.mark.slow
def test_both_transports_are_measured() -> None:
    found = transfer.measure(rounds=1)
    assert set(found) == {"in process", "ZeroMQ"}
    for sizes in found.values():
        assert set(sizes) == set(transfer.SIZES)
        for ways in sizes.values():
            assert all(row["bare"] > 0 and row["connector"] > 0 for row in ways.values())
