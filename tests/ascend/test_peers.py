"""Offers that are read from another process: what crosses, when it must not, and who dies when."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec
import pytest
from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole

from kvconform.connectors.ascend import peers
from kvconform.connectors.ascend.device import CpuDevice, Mark
from kvconform.connectors.ascend.metadata import Direction, Job, Source, StepJobs
from kvconform.connectors.ascend.service import AddressTakenError
from kvconform.connectors.ascend.settings import Endpoint, RemoteStore, Settings
from kvconform.connectors.ascend.store import Shard
from kvconform.connectors.ascend.transport import make_transport
from kvconform.connectors.ascend.worker import WorkerHalf
from tests.ascend.apart import LIMIT, PROCESSES, hear, make_device, values
from tests.ascend.rig import Engine, expected, make_config, prompt

TERMS = Endpoint("", "secret", transfer_seconds=LIMIT)
SETTINGS = Settings(
    engine_id="decode",
    block_size=4,
    num_blocks=4,
    world_size=2,
    may_load=True,
    may_save=True,
    async_min_blocks=1,
    store="store",
    capacity_blocks=4,
    transport=None,
    offer_seconds=LIMIT,
    peers=TERMS,
)


class Rank:
    """A rank's worker half, stepped by hand."""

    def __init__(self, settings: Settings, device: CpuDevice, rank: int = 0) -> None:
        config: Any = None  # nothing is made by a factory
        self.transport: Any = make_transport(settings, config, KVConnectorRole.WORKER, rank)
        self.half = WorkerHalf(settings, self.transport, device, rank)
        self.transport.register(device)

    def step(self, *jobs: Job) -> None:
        self.half.begin_step(StepJobs(jobs))
        self.half.start_load_kv()
        self.half.wait_for_save()

    def finished(self) -> tuple[set[str], set[str]]:
        """Requests that were sent, and received, since last asked."""
        sent, received = self.half.get_finished(set())
        return sent or set(), received or set()

    # -- of an engine that decodes ----------------------------------------------------------------

    def pull(self, source: Source, blocks: Sequence[int] = (0, 3)) -> set[int]:
        """A pull from its start to its end, in one step or many; blocks that failed."""
        self.step(job("pull", "pull", blocks, source))
        return self.pulled()

    def pulled(self) -> set[int]:
        outcome = self.transport.wait("pull")
        assert (outcome.request_id, outcome.direction) == ("request", "pull")
        with pytest.raises(KeyError):  # it is told once
            self.transport.wait("pull")
        return set(outcome.failed_block_ids)

    def settle(self) -> None:
        """Return when all that was told to other processes is done there."""
        for peer in self.peers:
            peer._link.ask("beat", LIMIT, patient=True).result(LIMIT)

    @property
    def peers(self) -> list[peers.Peer]:
        return list(self.transport._exchange._peers._peers.values())


def job(
    name: str, direction: Direction, blocks: Sequence[int] = (), source: Source | None = None
) -> Job:
    return Job(name, "request", direction, (), tuple(blocks), False, source)


def source(address: str | None, blocks: Sequence[int] = (2, 1), **changes: Any) -> Source:
    """An engine's first offer."""
    return Source(
        **{
            "engine_id": "prefill",
            "offer_id": "prefill/offer-0",
            "block_ids": tuple(blocks),
            "address": address,
            "instance": "first",
        }
        | changes
    )


OFFER = job("prefill/offer-0", "offer", (1, 2))
Make = Callable[..., Rank]


def prefill_settings(address: str, **changes: Any) -> Settings:
    mine: dict[str, Any] = {"engine_id": "prefill", "instance": "first", "peers": at(address)}
    return dataclasses.replace(SETTINGS, **mine | changes)


def at(address: str, **changes: Any) -> Endpoint:
    return dataclasses.replace(TERMS, address=address, **changes)


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"ipc://{tmp_path}/offers"


@pytest.fixture
def make() -> Iterator[Make]:
    """Makes ranks, of engines that decode unless told otherwise."""
    ranks = []

    def start(
        settings: Settings = SETTINGS, device: CpuDevice | None = None, rank: int = 0
    ) -> Rank:
        ranks.append(Rank(settings, device or make_device(), rank))
        return ranks[-1]

    yield start
    for rank in ranks:
        rank.half.shutdown()


class Gated(CpuDevice):
    """A device whose reads wait for a gate to be opened."""

    def __init__(self) -> None:
        super().__init__()
        self._planes = make_device()._planes
        self.entered, self.gate = threading.Event(), threading.Event()

    def read(self, block_ids: Sequence[int], after: Mark | None = None) -> list[Shard]:
        self.entered.set()
        assert self.gate.wait(LIMIT)
        return super().read(block_ids, after)


# -- another process ------------------------------------------------------------------------------


def be_a_rank(connection: Connection, settings: Settings, rank: int) -> None:
    """A process with a rank of an engine that prefills, which does what it is told."""

    class Told(CpuDevice):
        """Tells of the first read, and never ends it, if that is wanted."""

        stalls = False

        def read(self, block_ids: Sequence[int], after: Mark | None = None) -> list[Shard]:
            if self.stalls:
                connection.send("reading")
                threading.Event().wait()
            return super().read(block_ids, after)

    device = Told()
    device._planes = make_device(100.0 * (rank + 1))._planes
    mine = Rank(settings, device, rank)
    connection.send("ready")
    while True:
        match connection.recv():
            case "stop":
                mine.half.shutdown()
                return
            case "stall":
                device.stalls = True
                connection.send(None)
            case Job() as planned:
                mine.step(planned)
                connection.send(None)
            case "finished":
                connection.send(mine.finished())


class Prefill:
    """Such a process, from outside."""

    def __init__(self, settings: Settings, rank: int = 0) -> None:
        self.connection, there = PROCESSES.Pipe()
        self.process = PROCESSES.Process(
            target=be_a_rank, args=(there, settings, rank), daemon=True
        )
        self.process.start()
        assert hear(self.connection) == "ready"

    def do(self, order: Any) -> Any:
        self.connection.send(order)
        return hear(self.connection)

    def stop(self) -> None:
        self.connection.send("stop")
        self.process.join(LIMIT)
        assert self.process.exitcode == 0


STORES = {"local": None, "remote": RemoteStore("tcp://127.0.0.1:1", "secret")}
"""Where the store is; that nobody is at the second address concerns no pull."""


class TestProcesses:
    @pytest.mark.parametrize("store", STORES)
    def test_each_rank_reads_its_own_kind(self, make: Make, address: str, store: str) -> None:
        remote = STORES[store]
        settings = prefill_settings(address, remote=remote)
        ranks = [Prefill(settings, rank) for rank in range(2)]
        devices = [make_device() for _ in ranks]
        for rank, prefill in enumerate(ranks):
            assert prefill.do(OFFER) is None
            assert prefill.do("finished") == (set(), set())
            decode = make(dataclasses.replace(SETTINGS, remote=remote), devices[rank], rank)
            assert decode.pull(source(address)) == set()
            decode.settle()
            assert prefill.do("finished") == ({"request"}, set())
            assert prefill.do("finished") == (set(), set())
            prefill.stop()
        assert [values(device) for device in devices] == [[102, 1, 2, 101], [202, 1, 2, 201]]

    def test_a_peer_that_is_killed_in_the_middle(self, make: Make, address: str) -> None:
        prefill = Prefill(prefill_settings(address))
        prefill.do(OFFER)
        prefill.do("stall")
        device = make_device()
        decode = make(device=device)
        decode.step(job("pull", "pull", (0, 3), source(address)))
        assert hear(prefill.connection) == "reading"
        prefill.process.kill()
        assert decode.pulled() == {0, 3}
        assert values(device) == [0, 1, 2, 3]
        prefill.process.join(LIMIT)
        # One of the same name comes back, and has no such offer: its first one is of other blocks.
        again = Prefill(prefill_settings(address, instance="second"))
        assert decode.pull(source(address)) == {0, 3}
        again.do(OFFER)
        assert decode.pull(source(address)) == {0, 3}
        assert decode.pull(source(address, instance="second")) == set()
        assert values(device) == [102, 1, 2, 101]
        again.stop()


class TestOffers:
    """Both ends in this process, and yet apart."""

    @pytest.fixture
    def prefill(self, make: Make, address: str) -> Rank:
        return make(prefill_settings(address), make_device(100))

    def test_over_tcp(self, make: Make) -> None:
        settings = prefill_settings("tcp://127.0.0.1:20000")
        for port in range(20_000, 30_000, 7):  # one that is free
            address = f"tcp://127.0.0.1:{port}"
            try:
                prefill = make(dataclasses.replace(settings, peers=at(address)), rank=1)
            except AddressTakenError:
                continue
            break
        prefill.step(OFFER)
        server = prefill.transport._exchange._peers._server
        assert server._service.address == f"tcp://127.0.0.1:{port + 1}"
        device = make_device(100)
        assert make(device=device, rank=1).pull(source(address)) == set()
        assert values(device) == [2, 101, 102, 1]

    @pytest.mark.parametrize("size", [900, 1800, 64 << 20])
    def test_what_does_not_fit_in_one_message_takes_several(
        self, make: Make, address: str, size: int
    ) -> None:
        terms = at(address, max_message_bytes=size)
        make(prefill_settings(address, peers=terms), make_device(100)).step(OFFER)
        device = make_device()
        decode = make(dataclasses.replace(SETTINGS, peers=at("", max_message_bytes=size)), device)
        assert decode.pull(source(address, (3, 2, 1, 0)), (0, 1, 2, 3)) == set()
        assert values(device) == [103, 102, 101, 100]

    def test_a_block_that_fits_in_no_message(self, make: Make, address: str) -> None:
        terms = at(address, max_message_bytes=799)
        make(prefill_settings(address, peers=terms)).step(OFFER)
        assert make().pull(source(address)) == {0, 3}

    def test_who_comes_too_late_gets_nothing(self, make: Make, address: str) -> None:
        prefill = make(prefill_settings(address, offer_seconds=1e-9), make_device(100))
        device = make_device()
        decode = make(device=device)
        prefill.step(OFFER)
        assert decode.pull(source(address)) == {0, 3}
        assert prefill.finished() == ({"request"}, set())
        assert values(device) == [0, 1, 2, 3]

    def test_an_offer_that_ends_in_the_middle(
        self, prefill: Rank, make: Make, address: str
    ) -> None:
        device = make_device()
        decode = make(device=device)
        prefill.step(OFFER)
        offers = prefill.transport._exchange._offers
        read = offers.read

        def read_once(offer_id: str, blocks: Sequence[int]) -> Any:
            shards = read(offer_id, blocks)
            offers.close(offer_id)
            return shards

        offers.read = read_once
        assert decode.pull(source(address)) == {0, 3}
        assert prefill.finished() == ({"request"}, set())

    def test_who_comes_early_is_served(self, prefill: Rank, make: Make, address: str) -> None:
        device = make_device()
        decode = make(device=device)
        assert decode.pull(source(address)) == set()
        assert values(device) == [102, 1, 2, 101]
        decode.settle()
        assert prefill.finished() == (set(), set())
        prefill.step(OFFER)
        assert prefill.finished() == ({"request"}, set())

    def test_a_release_ends_the_offer(self, prefill: Rank, make: Make, address: str) -> None:
        prefill.step(OFFER)
        decode = make()
        decode.step(job("release", "release", (), source(address, ())))
        decode.settle()
        assert decode.finished() == (set(), set())
        assert prefill.finished() == ({"request"}, set())
        assert decode.pull(source(address)) == {0, 3}

    def test_a_failed_pull_is_told_by_the_ordinary_ways(
        self, prefill: Rank, make: Make, address: str
    ) -> None:
        decode = make()
        decode.step(job("pull", "pull", (0, 3), source(address, offer_id="no such offer")))
        (peer,) = decode.peers
        peer.mover._open["pull"].result(LIMIT)
        assert decode.finished() == (set(), {"request"})
        assert decode.half.get_block_ids_with_load_errors() == {0, 3}
        report = decode.half.build_connector_worker_meta()
        assert report is not None
        assert report.closings["pull"].failed

    @pytest.mark.parametrize("blocks", [(9, 1), (1,)])
    def test_blocks_that_are_none(
        self, prefill: Rank, make: Make, address: str, blocks: Sequence[int]
    ) -> None:
        prefill.step(OFFER)
        assert make().pull(source(address, blocks)) == {0, 3}
        assert make().pull(source(None, blocks)) == {0, 3}

    def test_nothing_to_pull(self, prefill: Rank, make: Make, address: str) -> None:
        prefill.step(OFFER)
        decode = make()
        assert decode.pull(source(address, ()), ()) == set()
        decode.settle()
        assert prefill.finished() == ({"request"}, set())


class TestStrangers:
    @pytest.fixture
    def prefill(self, make: Make, address: str) -> Rank:
        prefill = make(prefill_settings(address), make_device(100))
        prefill.step(OFFER)
        return prefill

    def test_another_token_is_refused(self, prefill: Rank, make: Make, address: str) -> None:
        device = make_device()
        other = dataclasses.replace(TERMS, token="wrong")
        decode = make(dataclasses.replace(SETTINGS, peers=other), device)
        assert decode.pull(source(address)) == {0, 3}
        assert values(device) == [0, 1, 2, 3]
        decode.step(job("release", "release", (), source(address)))
        assert prefill.finished() == (set(), set())  # the offer is open as before
        assert make().pull(source(address)) == set()

    @pytest.mark.parametrize(
        "other", [{"instance": "second"}, {"engine_id": "other"}, {"offer_id": "x/offer-²"}]
    )
    def test_who_means_another_is_refused(
        self, prefill: Rank, make: Make, address: str, other: dict[str, Any]
    ) -> None:
        assert make().pull(source(address, **other)) == {0, 3}
        assert prefill.finished() == (set(), set())

    def test_who_means_another_rank_is_refused(
        self, prefill: Rank, make: Make, address: str
    ) -> None:
        decode = make(rank=1)
        endpoint = TERMS.of_rank(0, address)
        peer = peers.Peer(endpoint, "the offers of 'prefill', instance 'first'", 1)
        decode.transport._exchange._peers.reach = lambda source: peer
        decode.transport._exchange._peers._peers["it", "is"] = peer
        assert decode.pull(source(address)) == {0, 3}
        assert prefill.finished() == (set(), set())

    @pytest.mark.parametrize(
        "address", ["", "nonsense", "tcp://127.0.0.1:port", "tcp://192.0.2.1:7000", 7, "ipc://"]
    )
    def test_an_address_that_leads_nowhere(self, make: Make, address: Any) -> None:
        decode = make(dataclasses.replace(SETTINGS, peers=at("", transfer_seconds=0.05)))
        assert decode.pull(source(address)) == {0, 3}
        decode.step(job("release", "release", (), source(address)))

    def test_other_machines_are_asked_only_if_that_is_wanted(self, make: Make) -> None:
        address = "tcp://192.0.2.1:7000"
        decode = make()
        assert decode.pull(source(address)) == {0, 3}
        assert decode.peers == []
        wanted = at("", allow_remote=True, transfer_seconds=0.05)
        decode = make(dataclasses.replace(SETTINGS, peers=wanted))
        assert decode.pull(source(address)) == {0, 3}
        assert len(decode.peers) == 1

    def test_an_address_is_of_no_use_without_a_token(self, make: Make, address: str) -> None:
        decode = make(dataclasses.replace(SETTINGS, peers=None))
        assert decode.pull(source(address)) == {0, 3}
        decode.step(job("release", "release", (), source(address)))

    def test_an_address_serves_one_engine(self, prefill: Rank, make: Make, address: str) -> None:
        with pytest.raises(AddressTakenError):
            make(prefill_settings(address, engine_id="other"))

    def test_other_machines_are_served_only_if_that_is_wanted(self, make: Make) -> None:
        with pytest.raises(ValueError, match="may be reached by other machines"):
            make(prefill_settings("tcp://192.0.2.1:7000"))


class TestTime:
    def test_nobody_is_there(self, make: Make, address: str) -> None:
        decode = make(dataclasses.replace(SETTINGS, peers=at("", transfer_seconds=0.1)))
        assert decode.pull(source(address)) == {0, 3}

    def test_a_late_answer_changes_nothing(self, make: Make, address: str) -> None:
        stalled, device = Gated(), make_device(100)
        prefill = make(prefill_settings(address), stalled)
        prefill.step(OFFER)
        decode = make(dataclasses.replace(SETTINGS, peers=at("", transfer_seconds=1.0)), device)
        decode.step(job("release", "release", (), source(address, offer_id="prefill/offer-9")))
        decode.settle()  # to connect takes time as well
        for name in ("pull", "behind it"):
            decode.step(job(name, "pull", (0, 3), source(address)))
        assert stalled.entered.wait(LIMIT)
        assert decode.pulled() == {0, 3}
        assert decode.transport.wait("behind it").failed_block_ids == (0, 3)
        stalled.gate.set()
        decode.settle()
        assert values(device) == [100, 101, 102, 103]
        assert prefill.finished() == ({"request"}, set())  # both have released it

    def test_one_that_stalls_holds_up_no_other(self, make: Make, tmp_path: Path) -> None:
        addresses = [f"ipc://{tmp_path}/{name}" for name in ("stalled", "well")]
        stalled = Gated()
        for address, device in zip(addresses, (stalled, make_device(100)), strict=True):
            make(prefill_settings(address), device).step(OFFER)
        device = make_device()
        decode = make(device=device)
        decode.step(job("stalled", "pull", (1,), source(addresses[0], (1,))))
        assert stalled.entered.wait(LIMIT)
        assert decode.pull(source(addresses[1])) == set()
        assert values(device) == [102, 1, 2, 101]
        stalled.gate.set()
        assert decode.transport.wait("stalled").failed_block_ids == ()

    def test_an_offer_does_not_end_while_it_is_read(self, make: Make, address: str) -> None:
        stalled = Gated()
        prefill = make(prefill_settings(address, offer_seconds=LIMIT), stalled)
        prefill.step(OFFER)
        decode = make()
        decode.step(job("pull", "pull", (0, 3), source(address)))
        assert stalled.entered.wait(LIMIT)
        offers = prefill.transport._exchange._offers
        closer = threading.Thread(target=offers.close, args=(OFFER.job_id,))
        closer.start()
        assert offers._lock.locked()
        stalled.gate.set()
        closer.join(LIMIT)
        assert prefill.finished() == ({"request"}, set())
        assert decode.pulled() in (set(), {0, 3})  # by who came first at the second portion


class TestEnds:
    def test_shutdown_leaves_no_thread(self, make: Make, address: str) -> None:
        before = set(threading.enumerate())
        stalled, device = Gated(), make_device()
        prefill, decode = make(prefill_settings(address), stalled), make(device=device)
        prefill.step(OFFER)
        decode.step(job("pull", "pull", (0, 3), source(address)))
        assert stalled.entered.wait(LIMIT)
        assert set(threading.enumerate()) > before
        decode.half.shutdown()
        assert decode.pulled() == {0, 3}
        stalled.gate.set()
        for _ in range(2):
            prefill.half.shutdown()
            decode.half.shutdown()
        assert set(threading.enumerate()) == before
        assert decode.pull(source(address)) == {0, 3}
        assert values(device) == [0, 1, 2, 3]
        assert prefill.finished() == decode.finished() == (set(), set())

    def test_nothing_is_told_of_offers_after_shutdown(self, make: Make, address: str) -> None:
        prefill = make(prefill_settings(address, offer_seconds=1e-9))
        prefill.step(OFFER)
        prefill.half.shutdown()
        assert prefill.finished() == (set(), set())

    def test_engines_come_and_go(
        self, make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(peers, "_KEPT", 2)
        addresses = [f"ipc://{tmp_path}/{number}" for number in range(5)]
        decode = make()
        for address in addresses:
            make(prefill_settings(address)).step(OFFER)
            assert decode.pull(source(address)) == set()
        assert len(decode.peers) == 2
        assert decode.pull(source(addresses[0], offer_id="prefill/offer-1")) == set()
        assert len(decode.peers) == 2


# -- whole engines --------------------------------------------------------------------------------


@pytest.fixture
def engines(tmp_path: Path) -> Iterator[Callable[..., tuple[Engine, Engine]]]:
    """One that prefills and one that decodes: real schedulers in one process, ZeroMQ in between."""
    made: list[Engine] = []

    def start(**config: Any) -> tuple[Engine, Engine]:
        offers = f"ipc://{tmp_path}/offers"
        made.append(Engine(role="kv_producer", offer_address=offers, token="secret", **config))
        made.append(Engine(role="kv_consumer", token="secret", **config))
        return made[0], made[1]

    yield start
    for engine in made:
        for worker in engine.workers:
            worker.connector.shutdown()
        engine.half.shutdown()


def prefilled(prefill: Engine, tokens: Sequence[int]) -> dict[str, Any]:
    """What leads to the KV of a request; it crosses two APIs on its way."""
    prefill.add("request", tokens, params={"do_remote_decode": True, "do_remote_prefill": False})
    while "request" not in prefill.params:
        prefill.step()
    params = prefill.params["request"]
    assert json.loads(json.dumps(params)) == params
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(params)) == params
    return params


class TestEngines:
    @pytest.mark.parametrize("tp", [1, 2])
    @pytest.mark.parametrize("async_scheduling", [False, True])
    def test_kv_is_pulled(
        self, engines: Callable[..., tuple[Engine, Engine]], tp: int, async_scheduling: bool
    ) -> None:
        prefill, decode = engines(tp=tp, async_scheduling=async_scheduling)
        params = prefilled(prefill, prompt(17))
        assert params["remote_address"] == prefill.half.settings.offer_address
        decode.add("request", prompt(17), 4, params=params)
        decode.run(1_000_000)
        assert decode.outputs["request"] == expected(prompt(17), 4)
        assert decode.told("finished_recving") == ["request"]
        prefill.run(1_000_000)
        assert prefill.told("finished_sending") == ["request"]
        for engine in (prefill, decode):
            assert engine.misread == []
            engine.assert_quiet()

    def test_a_full_local_hit(self, engines: Callable[..., tuple[Engine, Engine]]) -> None:
        prefill, decode = engines()
        decode.complete("before", prompt(17))
        decode.add("request", prompt(17), 4, params=prefilled(prefill, prompt(17)))
        decode.run()
        assert decode.outputs["request"] == expected(prompt(17), 4)
        assert decode.told("finished_recving") == []
        prefill.run(1_000_000)
        assert prefill.told("finished_sending") == ["request"]
        for engine in (prefill, decode):
            assert engine.misread == []
            engine.assert_quiet()

    def test_an_engine_that_is_gone(self, engines: Callable[..., tuple[Engine, Engine]]) -> None:
        prefill, decode = engines(transfer_seconds=0.1)
        params = prefilled(prefill, prompt(17))
        for worker in prefill.workers:
            worker.connector.shutdown()
        decode.add("request", prompt(17), 4, params=params)
        decode.run(1_000_000)
        assert decode.outputs["request"] == expected(prompt(17), 4)  # it computed all itself
        assert decode.misread == []
        decode.assert_quiet()

    def test_params_of_an_engine_without_an_address(self) -> None:
        prefill = Engine(role="kv_producer")
        params = prefilled(prefill, prompt(17))
        assert (params["remote_address"], params["remote_instance"]) == (None, "")


class TestSettings:
    def read(self, **extra: Any) -> Settings:
        return Settings.read(make_config(**extra), None)

    def test_defaults(self) -> None:
        assert self.read().peers is None
        assert self.read(token="secret").peers == Endpoint("", "secret")
        assert self.read(token="secret").offer_address is None

    def test_everything(self) -> None:
        chosen: dict[str, Any] = {
            "token": "secret",
            "allow_remote": True,
            "transfer_seconds": 1.5,
            "lease_seconds": 2.5,
            "max_message_bytes": 1000,
        }
        settings = self.read(**chosen, offer_address="tcp://10.0.0.1:7000", tp=2)
        assert settings.peers == Endpoint("tcp://10.0.0.1:7000", **chosen)
        assert settings.offer_address == "tcp://10.0.0.1:7000"
        assert settings.instance != self.read().instance

    def test_who_only_decodes_offers_nowhere(self) -> None:
        settings = self.read(role="kv_consumer", offer_address="ipc:///x", token="secret")
        assert settings.offer_address is None

    @pytest.mark.parametrize(
        ("base", "first", "third"),
        [
            ("tcp://127.0.0.1:7000", "tcp://127.0.0.1:7000", "tcp://127.0.0.1:7002"),
            ("tcp://[::1]:7000", "tcp://[::1]:7000", "tcp://[::1]:7002"),
            ("ipc:///path/x", "ipc:///path/x.0", "ipc:///path/x.2"),
        ],
    )
    def test_each_rank_has_an_address(self, base: str, first: str, third: str) -> None:
        assert [at(base).of_rank(rank).address for rank in (0, 2)] == [first, third]

    @pytest.mark.parametrize(
        ("wrong", "complaint"),
        [
            ({"token": ""}, "'offer_address'.* needs a 'token'"),
            ({"offer_address": "tcp://127.0.0.1:*"}, "tcp://HOST:PORT"),
            ({"offer_address": "tcp://127.0.0.1:65535", "tp": 2}, "rank 1 needs"),
            ({"offer_address": "inproc://x"}, "tcp://HOST:PORT"),
            ({"offer_address": "tcp://0.0.0.0:7000"}, "others cannot find"),
            ({"offer_address": "tcp://[::]:7000"}, "others cannot find"),
            ({"offer_address": "tcp://*:7000"}, "others cannot find"),
        ],
    )
    def test_what_has_no_meaning_is_refused(self, wrong: dict[str, Any], complaint: str) -> None:
        with pytest.raises(ValueError, match=complaint):
            self.read(**{"offer_address": "tcp://127.0.0.1:7000", "token": "secret"} | wrong)
