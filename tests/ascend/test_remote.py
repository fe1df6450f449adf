"""The store in another process: what crosses, who is let in, and what happens when an end dies."""

from __future__ import annotations

import dataclasses
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import zmq

from kvconform.connectors.ascend.device import CpuDevice
from kvconform.connectors.ascend.metadata import Direction
from kvconform.connectors.ascend.remote import RemoteTransport
from kvconform.connectors.ascend.server import TOKEN_VARIABLE, StoreServer, main
from kvconform.connectors.ascend.service import AddressTakenError
from kvconform.connectors.ascend.settings import RemoteStore, Settings
from kvconform.connectors.ascend.store import HostStore
from kvconform.connectors.ascend.transfers import Outcome, Transfer
from kvconform.connectors.ascend.wire import Codec, Message, store_title
from tests.ascend.apart import LIMIT, PROCESSES, Log, hear, make_device, values
from tests.ascend.rig import Engine, expected, make_config, prompt

KEYS = (b"a", b"b")
REMOTE = RemoteStore("tcp://127.0.0.1:*", "secret", answer_seconds=LIMIT, transfer_seconds=LIMIT)
Serve = Callable[..., RemoteStore]
Reach = Callable[..., RemoteTransport]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Serves a store, in a thread of this process; where it is."""
    servers = []

    def start(store: HostStore, **changes: Any) -> RemoteStore:
        server = StoreServer(store, "store", dataclasses.replace(REMOTE, **changes))
        servers.append(server)
        return dataclasses.replace(REMOTE, **changes | {"address": server.address})

    start.servers = servers  # type: ignore[attr-defined]
    yield start
    for server in servers:
        server.close()


@pytest.fixture
def reach() -> Iterator[Reach]:
    """A transport to a store, once the store has answered it."""
    transports = []

    def start(remote: RemoteStore, ranks: int = 1, rank: int = 0) -> RemoteTransport:
        transport = RemoteTransport(remote, store_title("store", ranks), rank)
        transports.append(transport)
        assert transport.link.reachable.wait(LIMIT)
        return transport

    yield start
    for transport in transports:
        transport.shutdown()


def move(
    transport: RemoteTransport,
    direction: Direction,
    device: CpuDevice,
    blocks: Sequence[int] = (0, 1),
    keys: Sequence[bytes] = KEYS,
) -> Outcome:
    """A transfer in the name of its direction, from submission to end."""
    transport.submit(
        Transfer(
            direction, "request", direction, transport.rank, tuple(keys), tuple(blocks), device
        )
    )
    return transport.wait(direction)


def save(transport: RemoteTransport, device: CpuDevice, keys: Sequence[bytes] = KEYS) -> None:
    granted = transport.reserve("save", keys)
    assert granted == list(range(len(keys)))
    assert move(transport, "save", device, granted, keys).failed_block_ids == ()
    transport.commit("save")
    settle(transport)


def settle(transport: RemoteTransport) -> None:
    """Return when all that the transport told the store is done: other connections see it then."""
    transport.link.ask("commit", LIMIT, holder="nobody").result(LIMIT)


class Gated(HostStore):
    """A store one of whose methods waits for a gate to be opened."""

    def __init__(self, method: str) -> None:
        super().__init__(8, 1)
        self.entered, self.gate = threading.Event(), threading.Event()
        inner = getattr(self, method)

        def gated(*args: Any) -> Any:
            self.entered.set()
            assert self.gate.wait(LIMIT)
            return inner(*args)

        setattr(self, method, gated)


class Watched(HostStore):
    """A store that tells when a holder has given everything back."""

    def __init__(self, ranks: int = 1) -> None:
        super().__init__(8, ranks)
        self.given_back = {name: threading.Event() for name in ("pins", "reservation")}

    def _note(self) -> None:
        for name in self.given_back.keys() - self.holders:
            self.given_back[name].set()

    def unpin(self, holder: str) -> None:
        super().unpin(holder)
        self._note()

    def abandon(self, holder: str) -> None:
        super().abandon(holder)
        self._note()


@pytest.fixture
def listen() -> Iterator[Callable[[str, str], Log]]:
    added = []

    def start(module: str, text: str) -> Log:
        logger, log = logging.getLogger(f"kvconform.connectors.ascend.{module}"), Log(text)
        logger.addHandler(log)
        added.append((logger, log))
        return log

    yield start
    for logger, log in added:
        logger.removeHandler(log)


class TestAdmission:
    """Raw sockets at a real server."""

    def talk(self, remote: RemoteStore, frames: Sequence[bytes | bytearray | memoryview]) -> Any:
        with zmq.Context() as context, context.socket(zmq.DEALER) as peer:
            peer.linger = 0
            peer.connect(remote.address)
            peer.send_multipart(frames)
            if not peer.poll(LIMIT * 1000):
                raise AssertionError("no answer")
            return Codec(remote.token, 10_000).decode(peer.recv_multipart())

    def test_a_stranger_is_refused_and_logged_and_the_others_are_served(
        self, serve: Serve, reach: Reach, listen: Callable[[str, str], Log]
    ) -> None:
        store = HostStore(4, 1)
        remote = serve(store)
        log = listen("service", "another token")
        hello = Message("reserve", 3, "me", store_title("store", 1), "job", keys=KEYS)
        for frames, number, reason in (
            ([b"garbage"], 0, "not a message of this protocol"),
            (Codec("wrong", 1000).encode(hello), 0, "another token"),
            (
                Codec("secret", 1000).encode(dataclasses.replace(hello, title="other")),
                3,
                "this is the store 'store' of 1 ranks, not other",
            ),
            (
                Codec("secret", 1000).encode(dataclasses.replace(hello, op="explode")),
                3,
                "no operation 'explode'",
            ),
            (
                Codec("secret", 1000).encode(dataclasses.replace(hello, op="write")),
                3,
                "not one shard for each key",
            ),
            (Codec("secret", 1000).encode(dataclasses.replace(hello, rank=1)), 3, "no rank 1 here"),
        ):
            answer = self.talk(remote, frames)
            assert (answer.op, answer.number, answer.reason) == ("refused", number, reason)
        assert log.told.wait(LIMIT)
        assert store.holders == frozenset()
        assert reach(remote).reserve("job", KEYS) == [0, 1]

    def test_a_frame_that_is_too_large_cuts_the_connection(
        self, serve: Serve, reach: Reach
    ) -> None:
        remote = serve(HostStore(4, 1), max_message_bytes=1000)
        with zmq.Context() as context, context.socket(zmq.DEALER) as peer:
            peer.linger = 0
            monitor = peer.get_monitor_socket(zmq.EVENT_DISCONNECTED)
            peer.connect(remote.address)
            peer.send(b"x" * 2000)
            assert monitor.poll(LIMIT * 1000)
            peer.disable_monitor()
        assert reach(remote).lookup(KEYS) == 0

    @pytest.mark.parametrize(
        ("token", "store", "complaint"),
        [("wrong", "store", "it answers with another token"), ("secret", "mine", "it refuses")],
    )
    def test_who_is_refused_has_no_store(
        self,
        serve: Serve,
        listen: Callable[[str, str], Log],
        token: str,
        store: str,
        complaint: str,
    ) -> None:
        log = listen("link", complaint)
        remote = dataclasses.replace(serve(HostStore(4, 1)), token=token)
        transport = RemoteTransport(remote, store_title(store, 1), 0)
        assert log.told.wait(LIMIT)
        assert_gone(transport)
        transport.shutdown()

    @pytest.mark.parametrize(
        "address", ["tcp://0.0.0.0:*", "tcp://*:7777", "tcp://[::]:*", "tcp://192.0.2.1:7777"]
    )
    def test_other_machines_are_served_only_if_that_is_wanted(self, address: str) -> None:
        with pytest.raises(ValueError, match="may be reached by other machines"):
            StoreServer(HostStore(4, 1), "store", dataclasses.replace(REMOTE, address=address))

    @pytest.mark.parametrize("address", ["inproc://x", "7777", "tcp://127.0.0.1:port"])
    def test_an_address_that_is_none(self, address: str) -> None:
        with pytest.raises(ValueError, match="served"):
            StoreServer(HostStore(4, 1), "store", dataclasses.replace(REMOTE, address=address))

    @pytest.mark.parametrize("kind", ["tcp", "ipc"])
    def test_an_address_has_one_server(self, serve: Serve, tmp_path: Path, kind: str) -> None:
        wanted = f"ipc://{tmp_path}/store" if kind == "ipc" else REMOTE.address
        address = serve(HostStore(4, 1), address=wanted).address
        with pytest.raises(AddressTakenError):
            serve(HostStore(4, 1), address=address)


def assert_gone(transport: RemoteTransport) -> None:
    """The store is out of reach: everything is answered, and at once."""
    assert transport.lookup(KEYS) == 0
    assert transport.pin("pins", KEYS) == 0
    assert transport.reserve("reservation", KEYS) == []
    assert not transport.clear()
    transport.commit("reservation")
    transport.unpin("pins")
    device = make_device()
    for direction in ("load", "save"):
        assert move(transport, direction, device).failed_block_ids == (0, 1)
    assert values(device) == [0, 1, 2, 3]


class TestTransport:
    def test_bytes_go_there_and_back(self, serve: Serve, reach: Reach) -> None:
        store = HostStore(4, 1)
        transport = reach(serve(store))
        device = make_device()
        save(transport, device)
        assert transport.lookup([*KEYS, b"x"]) == 2
        assert transport.pin("load", [*KEYS, b"x"]) == 2
        keys = (b"b", b"x", b"a")
        assert move(transport, "load", device, (2, 1, 3), keys).failed_block_ids == (1,)
        assert values(device) == [0, 1, 1, 0]
        assert transport.poll() == []
        transport.unpin("load")
        assert transport.clear()
        assert transport.lookup(KEYS) == 0
        assert store.holders == frozenset()

    def test_outcomes_are_told_once(self, serve: Serve, reach: Reach) -> None:
        transport = reach(serve(HostStore(4, 1)))
        outcome = move(transport, "load", make_device())
        assert outcome == Outcome("load", "request", "load", (0, 1))  # nobody pinned anything
        assert transport.poll() == []
        with pytest.raises(KeyError):
            transport.wait("load")

    def test_what_does_not_fit_in_one_message_takes_several(
        self, serve: Serve, reach: Reach
    ) -> None:
        transport = reach(
            serve(HostStore(8, 1), max_message_bytes=1000)
        )  # of one shard, not of two
        device, keys = make_device(), (b"a", b"b", b"c", b"d")
        save(transport, device, keys)
        assert transport.pin("load", keys) == 4
        assert move(transport, "load", device, (3, 2, 1, 0), keys).failed_block_ids == ()
        assert values(device) == [3, 2, 1, 0]

    def test_a_shard_that_fits_in_no_message_fails(self, serve: Serve, reach: Reach) -> None:
        transport = reach(serve(HostStore(8, 1), max_message_bytes=500))
        assert transport.reserve("save", [b"a"]) == [0]
        assert move(transport, "save", make_device(), [0], [b"a"]).failed_block_ids == (0,)
        assert transport.lookup(KEYS) == 0  # the connection is as good as before

    def test_a_late_lookup_is_picked_up(self, serve: Serve, reach: Reach) -> None:
        store = Gated("lookup")
        transport = reach(dataclasses.replace(serve(store), answer_seconds=0.001))
        assert transport.lookup([]) == 0
        for _ in range(3):
            assert transport.lookup(KEYS) is None
            assert transport.lookup(KEYS[:1]) is None
        store.gate.set()
        for _, asked in transport._lookups.values():
            asked.result(LIMIT)
        assert transport.lookup(KEYS) == 0
        assert transport.lookup(KEYS[:1]) == 0
        assert not transport._lookups

    def test_a_lookup_from_before_a_clear_is_not_believed(self, serve: Serve, reach: Reach) -> None:
        store = Gated("lookup")
        remote = serve(store)
        save(reach(remote), make_device())
        transport = reach(dataclasses.replace(remote, answer_seconds=0.001))
        assert transport.lookup(KEYS) is None
        ((_, asked),) = transport._lookups.values()
        store.gate.set()
        assert asked.result(LIMIT).answer == (2,)
        assert transport.clear()
        assert transport.lookup(KEYS) in (None, 0)

    def test_a_reservation_that_comes_too_late_is_given_up(
        self, serve: Serve, reach: Reach
    ) -> None:
        store = Gated("reserve")
        given_up = threading.Event()
        store.abandon = lambda holder: given_up.set()  # type: ignore[method-assign]
        transport = reach(dataclasses.replace(serve(store), answer_seconds=0.001))
        assert transport.reserve("job", KEYS) == []
        assert store.entered.wait(LIMIT)
        store.gate.set()
        assert given_up.wait(LIMIT)

    def test_a_store_that_is_silent_fails_transfers_and_its_late_answer_changes_nothing(
        self, serve: Serve, reach: Reach
    ) -> None:
        store = Gated("read")
        remote = serve(store)
        planner = reach(remote)
        save(planner, make_device(100))
        assert planner.pin("load", KEYS) == 2
        transport = reach(dataclasses.replace(remote, transfer_seconds=0.2))
        device = make_device()
        for name in ("load", "behind it"):
            transport.submit(Transfer(name, "request", "load", 0, KEYS, (0, 1), device))
        for name in ("load", "behind it"):
            assert transport.wait(name).failed_block_ids == (0, 1)
        store.gate.set()
        assert transport.link.ask("lookup", LIMIT, keys=KEYS).result(LIMIT).answer == (2,)
        assert values(device) == [0, 1, 2, 3]
        assert transport.poll() == []

    def test_a_store_that_is_silent_is_gone_until_it_speaks(
        self, serve: Serve, reach: Reach, listen: Callable[[str, str], Log]
    ) -> None:
        log = listen("link", "it does not answer")
        store = Gated("lookup")
        remote = serve(store, lease_seconds=0.3)
        transport = reach(dataclasses.replace(remote, answer_seconds=0.001))
        assert transport.lookup(KEYS) is None
        assert log.told.wait(LIMIT)
        assert_gone(transport)
        store.gate.set()
        assert transport.link.reachable.wait(LIMIT)
        patient = dataclasses.replace(remote, answer_seconds=LIMIT)
        save(reach(patient), make_device())
        assert transport.link.ask("lookup", LIMIT, keys=KEYS).result(LIMIT).answer == (2,)


class TestEnds:
    def test_shutdown_leaves_nothing_behind(self, serve: Serve, reach: Reach) -> None:
        before = set(threading.enumerate())
        store = Watched()
        transport = reach(serve(store))
        save(transport, make_device())
        assert transport.pin("pins", KEYS) == 2
        assert transport.reserve("reservation", [b"c"]) == [0]
        assert set(threading.enumerate()) > before
        for _ in range(2):
            transport.shutdown()
            assert store.holders == frozenset()
            serve.servers[0].close()  # type: ignore[attr-defined]
        assert set(threading.enumerate()) == before
        assert transport.link._context.closed
        assert_gone(transport)

    def test_shutdown_ends_what_is_open(self, serve: Serve, reach: Reach) -> None:
        store = Gated("read")
        transport = reach(serve(store))
        device = make_device()
        for name in ("one", "two"):
            transport.submit(Transfer(name, "request", "load", 0, KEYS, (0, 1), device))
        assert store.entered.wait(LIMIT)
        transport.shutdown()
        assert [outcome.failed_block_ids for outcome in transport.poll()] == [(0, 1)] * 2
        store.gate.set()

    def test_the_store_goes_and_comes_back(self, serve: Serve, reach: Reach) -> None:
        remote = serve(HostStore(4, 1))
        transport = reach(remote)
        save(transport, make_device())
        serve.servers[0].close()  # type: ignore[attr-defined]
        assert_gone(transport)
        serve(HostStore(4, 1), address=remote.address)
        assert transport.link.reachable.wait(LIMIT)
        assert transport.lookup(KEYS) == 0  # another store
        save(transport, make_device())
        assert transport.lookup(KEYS) == 2

    def test_the_store_dies_in_the_middle_of_a_load(self, serve: Serve, reach: Reach) -> None:
        here, there = PROCESSES.Pipe()
        server = PROCESSES.Process(target=serve_and_stall, args=(there,), daemon=True)
        server.start()
        remote = dataclasses.replace(REMOTE, address=hear(here))
        transport = reach(remote)
        device = make_device()
        transport.submit(Transfer("load", "request", "load", 0, KEYS, (0, 1), device))
        assert hear(here) == "reading"
        server.kill()
        assert transport.wait("load").failed_block_ids == (0, 1)
        assert_gone(transport)
        server.join(LIMIT)
        serve(HostStore(4, 1), address=remote.address)
        assert transport.link.reachable.wait(LIMIT)
        save(transport, device)
        assert transport.pin("load", KEYS) == 2
        assert move(transport, "load", device, (2, 3)).failed_block_ids == ()
        assert values(device) == [0, 1, 0, 1]


def serve_and_stall(connection: Connection) -> None:
    """A process whose store never answers a read."""

    class Stalled(HostStore):
        def read(self, *args: Any) -> Any:
            connection.send("reading")
            threading.Event().wait()

    server = StoreServer(Stalled(4, 1), "store", REMOTE)
    connection.send(server.address)
    threading.Event().wait()


def be_a_client(connection: Connection, remote: RemoteStore, ranks: int, rank: int) -> None:
    """A process with one half of an engine, which does what it is told."""
    transport = RemoteTransport(remote, store_title("store", ranks), rank)
    assert transport.link.reachable.wait(LIMIT)
    device = make_device(100.0 * rank)
    while True:
        match connection.recv():
            case "stop":
                transport.shutdown()
                return
            case "values":
                connection.send(values(device))
            case ("load" | "save") as direction, *args:
                connection.send(move(transport, direction, device, *args).failed_block_ids)
            case name, *args:
                connection.send(getattr(transport, name)(*args))


class Client:
    """Such a process, from outside."""

    def __init__(self, remote: RemoteStore, ranks: int = 2, rank: int = 0) -> None:
        self.connection, there = PROCESSES.Pipe()
        self.process = PROCESSES.Process(
            target=be_a_client, args=(there, remote, ranks, rank), daemon=True
        )
        self.process.start()

    def start(self, *order: Any) -> None:
        self.connection.send(order if len(order) > 1 else order[0])

    def end(self) -> Any:
        return hear(self.connection)

    def do(self, *order: Any) -> Any:
        self.start(*order)
        return self.end()

    def stop(self) -> None:
        if self.process.is_alive():
            self.start("stop")
        self.process.join(LIMIT)
        assert self.process.exitcode is not None


class TestProcesses:
    def test_a_scheduler_and_two_ranks(self, serve: Serve) -> None:
        store = Watched(ranks=2)
        remote = serve(store)
        scheduler, *ranks = clients = [Client(remote, rank=rank) for rank in (0, 0, 1)]
        assert scheduler.do("reserve", "save", KEYS) == [0, 1]
        for rank in ranks:
            rank.start("save", (0, 1))
        assert [rank.end() for rank in ranks] == [(), ()]
        assert scheduler.do("lookup", KEYS) == 0  # not before every rank is known to be done
        assert scheduler.do("commit", "save") is None
        assert scheduler.do("lookup", KEYS) == 2
        assert scheduler.do("pin", "load", KEYS) == 2
        for rank in ranks:
            rank.start("load", (3, 2))
        assert [rank.end() for rank in ranks] == [(), ()]
        assert [rank.do("values") for rank in ranks] == [[0, 1, 1, 0], [100, 101, 101, 100]]
        assert scheduler.do("unpin", "load") is None
        for client in clients:
            client.stop()
            assert client.process.exitcode == 0
        assert store.holders == frozenset()

    def test_what_a_dead_client_held_is_given_back(self, serve: Serve, reach: Reach) -> None:
        store = Watched()
        remote = serve(store, lease_seconds=2.0)
        living = reach(remote)
        save(living, make_device())
        assert living.pin("living", KEYS) == 2
        dead = Client(remote, ranks=1)
        assert dead.do("pin", "pins", KEYS) == 2
        assert dead.do("reserve", "reservation", [b"c"]) == [0]
        assert store.holders == {"living", "pins", "reservation"}
        dead.process.kill()
        for given_back in store.given_back.values():
            assert given_back.wait(LIMIT)
        assert store.holders == {"living"}
        dead.stop()

    def test_a_server_on_its_own_needs_a_token(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
        with pytest.raises(SystemExit):
            main([REMOTE.address, "--store", "store"])
        assert f"{TOKEN_VARIABLE} is not set" in capsys.readouterr().err

    @pytest.mark.slow
    def test_a_server_on_its_own(self, reach: Reach) -> None:
        command = [sys.executable, "-m", "kvconform.connectors.ascend.server", REMOTE.address]
        options = ["--store", "store", "--capacity-blocks", "4"]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        with subprocess.Popen(
            command + options,
            env=environment | {TOKEN_VARIABLE: REMOTE.token},
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout is not None
            said, address = process.stdout.readline().rsplit(maxsplit=1)
            assert said == "serving store at"
            transport = reach(dataclasses.replace(REMOTE, address=address))
            save(transport, make_device())
            assert transport.lookup(KEYS) == 2
            process.send_signal(signal.SIGTERM)
            assert process.wait(LIMIT) == 0


class TestEngine:
    """The whole connector, as configured by a user."""

    @pytest.fixture
    def start(self, tmp_path: Path) -> Iterator[Callable[[], Engine]]:
        engines = []

        def make() -> Engine:
            engine = Engine(
                tp=2,
                store="shared",
                address=f"ipc://{tmp_path}/store",
                token="secret",
                serve=True,
                answer_ms=LIMIT * 1000,
            )
            engines.append(engine)
            for connector in connectors(engine):
                assert connector.transport.link.reachable.wait(LIMIT)
            return engine

        yield make
        for engine in engines:
            for half in connectors(engine):
                half.shutdown()

    def test_engines_share_what_they_save(self, start: Callable[[], Engine]) -> None:
        one, two = start(), start()
        assert one.half.transport._server is not None  # type: ignore[attr-defined]
        assert two.half.transport._server is None  # type: ignore[attr-defined]
        for engine in (one, two):
            engine.add("request", prompt(17), 4)
            engine.run(1_000_000)
            assert engine.outputs["request"] == expected(prompt(17), 4)
            assert engine.misread == []
            settle(engine.half.transport)  # type: ignore[arg-type]
        assert (one.told("finished_recving"), one.told("finished_sending")) == ([], ["request"])
        assert two.told("finished_recving") == ["request"]
        assert two.connector.reset_cache()
        assert one.half.transport._server._store.used_blocks == 0  # type: ignore[attr-defined]


def connectors(engine: Engine) -> list[Any]:
    """Its halves, the workers' first."""
    return [*(worker.connector.worker for worker in engine.workers), engine.half]


class TestSettings:
    def read(self, **extra: Any) -> RemoteStore | None:
        return Settings.read(make_config(**extra), None).remote

    def test_defaults(self) -> None:
        assert self.read(token="secret") is None
        remote = self.read(address="tcp://127.0.0.1:7777", token="secret")
        assert remote == RemoteStore("tcp://127.0.0.1:7777", "secret")
        assert "secret" not in repr(remote)

    def test_everything(self) -> None:
        chosen: dict[str, Any] = {
            "address": "tcp://10.0.0.1:7777",
            "token": "secret",
            "serve": True,
            "allow_remote": True,
            "transfer_seconds": 1.5,
            "lease_seconds": 2.5,
            "max_message_bytes": 1000,
        }
        assert self.read(**chosen, answer_ms=4) == RemoteStore(**chosen, answer_seconds=0.004)

    @pytest.mark.parametrize(
        ("wrong", "complaint"),
        [
            ({"token": None}, "needs a 'token'"),
            ({"token": ""}, "needs a 'token'"),
            ({"transport": "module:factory"}, "exclude"),
            ({"serve": "false"}, "'serve'.* must be true or false"),
            ({"answer_ms": 0}, "'answer_ms'.* must be positive"),
            ({"lease_seconds": float("nan")}, "'lease_seconds'.* must be positive"),
            ({"max_message_bytes": 0}, "'max_message_bytes'.* at least 1"),
        ],
    )
    def test_what_has_no_meaning_is_refused(self, wrong: dict[str, Any], complaint: str) -> None:
        with pytest.raises(ValueError, match=complaint):
            self.read(**{"address": "tcp://127.0.0.1:7777", "token": "secret"} | wrong)
