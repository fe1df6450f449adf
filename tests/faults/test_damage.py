"""Bytes that do not get across, and bytes that change where they lie."""

from __future__ import annotations

import torch

from kvconform.conformance.run import Run
from kvconform.connectors.ascend.device import CpuDevice
from kvconform.connectors.targets.resolve import resolve
from kvconform.engine.oracle import TORN
from kvconform.faults.damage import TearingDevice, rot
from kvconform.scenario.actions import Arrive, Corrupt, Reset, Step
from kvconform.scenario.prompt import Prompt
from kvconform.scenario.shape import Shape
from kvconform.scenario.trace import Kind

_TORN = torch.tensor([TORN], dtype=torch.int64).view(torch.float32)


def device(*blocks: float) -> CpuDevice:
    """One layer; each block is filled with a number."""
    made = CpuDevice()
    made.register_kv_caches({"l": torch.tensor(blocks).repeat_interleave(8).view(-1, 8)}, None)
    return made


def numbers(shard: torch.Tensor) -> torch.Tensor:
    return shard.view(torch.float32)


def test_half_of_a_torn_block_is_read() -> None:
    whole, torn = TearingDevice(device(1.0, 2.0), {1}).read((0, 1))
    assert torch.equal(numbers(whole), torch.full((8,), 1.0))
    assert torch.equal(numbers(torn), torch.cat((torch.full((4,), 2.0), _TORN.repeat(2))))


def test_half_of_a_torn_block_is_written() -> None:
    memory = device(1.0, 2.0)
    shards = [torch.full((8,), value).view(torch.uint8) for value in (5.0, 6.0)]
    TearingDevice(memory, {1}).write((0, 1), shards)
    whole, torn = memory.read((0, 1))
    assert torch.equal(numbers(whole), torch.full((8,), 5.0))
    assert torch.equal(numbers(torn), torch.tensor([6.0] * 4 + [2.0] * 4))


def test_a_shard_rots_in_place() -> None:
    memory = torch.ones(4)
    rot(memory.view(torch.uint8))
    assert not (memory == 1).any()


def test_a_damaged_block_is_not_loaded_and_not_found_again() -> None:
    prompt = Prompt(0, 40)
    with Run(resolve("ascend"), Shape()) as run:
        for action in (Arrive(prompt), Step(4), Reset(), Corrupt(), Arrive(prompt), Step(4)):
            run.do(action)
        (load,) = (e for e in run.trace.of(Kind.MOVED) if e.data["direction"] == "load")
        assert load.data["failed"] == load.data["blocks"][1:]
        assert len(list(run.trace.of(Kind.CORRUPTED))) == 1
        run.drain()
        assert run.violation is None
