"""The transport in process, the factory, and what crosses between the halves."""

from __future__ import annotations

import copy
import pickle
from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest
import torch
from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole

from kvconform.connectors.ascend.device import CpuDevice
from kvconform.connectors.ascend.metadata import Closing, Job, StepJobs, WorkerReport
from kvconform.connectors.ascend.settings import Settings
from kvconform.connectors.ascend.store import HostStore
from kvconform.connectors.ascend.transport import LocalTransport, Outcome, Transfer, make_transport
from tests.ascend.held import HeldTransport
from tests.ascend.rig import make_config, make_kv_cache_config

KEYS = (b"a", b"b")


@pytest.fixture
def device() -> CpuDevice:
    """Four blocks, two layers; layer i of block b is full of 10 * i + b."""
    device = CpuDevice()
    device.register_kv_caches({f"layer{i}": layer(i) for i in range(2)}, 4)
    return device


def layer(index: int) -> torch.Tensor:
    return (torch.arange(4.0) + 10 * index).reshape(4, 1, 1, 1).repeat(1, 2, 3, 2)


def values(device: CpuDevice, block: int) -> list[float]:
    """The value that fills each layer of a block."""
    (shard,) = device.read([block])
    layers = shard.view(torch.float32).reshape(2, -1)
    assert all(bool((layer == layer[0]).all()) for layer in layers)
    return [float(layer[0]) for layer in layers]


def transfer(device: CpuDevice, **changes: Any) -> Transfer:
    return replace(Transfer("job", "request", "save", 0, KEYS, (1, 2), device), **changes)


class TestLocalTransport:
    @pytest.fixture
    def transport(self) -> LocalTransport:
        return LocalTransport(HostStore(4, 1), 0)

    def saved(self, transport: LocalTransport, device: CpuDevice) -> None:
        transport.reserve("job", KEYS)
        transport.submit(transfer(device))
        assert transport.poll() == [Outcome("job", "request", "save", ())]
        transport.commit("job")

    def test_bytes_go_there_and_back(self, transport: LocalTransport, device: CpuDevice) -> None:
        self.saved(transport, device)
        assert transport.lookup(KEYS) == 2
        assert transport.pin("load", KEYS) == 2
        transport.submit(transfer(device, id="load", direction="load", block_ids=(3, 0)))
        assert transport.poll() == [Outcome("load", "request", "load", ())]
        assert [values(device, b) for b in range(4)] == [[2, 12], [1, 11], [2, 12], [1, 11]]

    def test_what_is_saved_does_not_follow_the_device(
        self, transport: LocalTransport, device: CpuDevice
    ) -> None:
        self.saved(transport, device)
        device.write([1], device.read([3]))
        transport.pin("load", KEYS)
        transport.submit(transfer(device, id="load", direction="load"))
        assert values(device, 1) == [1, 11]

    def test_a_missing_block_fails_alone(
        self, transport: LocalTransport, device: CpuDevice
    ) -> None:
        self.saved(transport, device)
        transport.pin("load", KEYS)
        transport.submit(
            transfer(device, id="load", direction="load", keys=(b"b", b"x"), block_ids=(0, 3))
        )
        assert transport.poll() == [Outcome("load", "request", "load", (3,))]
        assert [values(device, b) for b in (0, 3)] == [[2, 12], [3, 13]]

    def test_a_load_reads_only_what_was_pinned_for_it(
        self, transport: LocalTransport, device: CpuDevice
    ) -> None:
        self.saved(transport, device)
        transport.submit(transfer(device, id="load", direction="load"))
        assert transport.poll()[0].failed_block_ids == (1, 2)

    def test_a_save_without_a_reservation_fails(
        self, transport: LocalTransport, device: CpuDevice
    ) -> None:
        transport.reserve("job", KEYS[:1])
        transport.submit(transfer(device))
        assert transport.poll() == [Outcome("job", "request", "save", (2,))]

    def test_each_outcome_is_told_once(self, transport: LocalTransport, device: CpuDevice) -> None:
        transport.submit(transfer(device))
        transport.submit(transfer(device, id="waited for"))
        assert transport.wait("waited for").transfer_id == "waited for"
        assert [outcome.transfer_id for outcome in transport.poll()] == ["job"]
        assert transport.poll() == []
        with pytest.raises(KeyError):
            transport.wait("job")

    def test_move_keeps_no_outcome(self, transport: LocalTransport, device: CpuDevice) -> None:
        assert transport.move(transfer(device)).transfer_id == "job"
        assert transport.poll() == []

    def test_ranks_have_shards_of_their_own(self, device: CpuDevice) -> None:
        store = HostStore(4, 2)
        ranks = [LocalTransport(store, rank) for rank in range(2)]
        ranks[0].reserve("job", KEYS)
        ranks[0].submit(transfer(device, rank=0, block_ids=(0, 1)))
        ranks[1].submit(transfer(device, rank=1, block_ids=(2, 3)))
        ranks[0].commit("job")
        ranks[0].pin("load", KEYS)
        ranks[1].submit(transfer(device, id="load", direction="load", rank=1, block_ids=(0, 1)))
        assert [values(device, b) for b in (0, 1)] == [[2, 12], [3, 13]]

    def test_clear_and_shutdown(self, transport: LocalTransport, device: CpuDevice) -> None:
        self.saved(transport, device)
        assert transport.clear()
        assert transport.lookup(KEYS) == 0
        transport.submit(transfer(device))
        transport.shutdown()
        transport.shutdown()
        assert transport.poll() == []


class TestFactory:
    def make(self, **extra: Any) -> Any:
        config = make_config(engine_id="e", **extra)
        settings = Settings.read(config, make_kv_cache_config(8))
        return make_transport(settings, config, KVConnectorRole.WORKER, 1)

    def test_the_default_is_local(self) -> None:
        transport = self.make()
        assert isinstance(transport, LocalTransport)
        assert transport.rank == 1

    def test_both_halves_of_an_engine_share_a_store(self) -> None:
        assert self.make().store is self.make().store

    def test_a_name_leads_to_a_factory(self) -> None:
        transport = self.make(transport="tests.ascend.held:connect")
        assert isinstance(transport, HeldTransport)
        assert transport.inner.rank == 1

    @pytest.mark.parametrize("name", ["tests.ascend.held", ":connect", "tests.ascend.held:"])
    def test_a_name_that_is_none(self, name: str) -> None:
        with pytest.raises(ValueError, match=r"package\.module:factory"):
            self.make(transport=name)


class TestMetadata:
    JOB = Job("job", "request", "load", KEYS, (1, 2), wait=True)

    def test_it_is_frozen_and_survives_the_wire(self) -> None:
        step = StepJobs((self.JOB,))
        assert copy.deepcopy(step) == step
        assert pickle.dumps(step)
        with pytest.raises(FrozenInstanceError):
            step.jobs = ()  # type: ignore[misc]
        with pytest.raises(FrozenInstanceError):
            self.JOB.wait = False  # type: ignore[misc]

    def test_reports_count_ranks_job_by_job(self) -> None:
        one = WorkerReport({"a": Closing(1, False), "b": Closing(1, False)})
        two = WorkerReport({"b": Closing(1, True), "c": Closing(1, False)})
        both = one.aggregate(two)
        assert both.closings == {
            "a": Closing(1, False),
            "b": Closing(2, True),
            "c": Closing(1, False),
        }
        assert two.aggregate(one) == both
        assert both.aggregate(two).closings["b"] == Closing(3, True)
        assert one.closings == {"a": Closing(1, False), "b": Closing(1, False)}
        assert copy.deepcopy(both) == both
