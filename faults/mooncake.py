"""A world in which Mooncake's transfers obey orders, for vllm-ascend's ``MooncakeConnector``.

The connector's code is its own, and so are its threads and its messages. Simulated are what they
stand on: the transfer engine (:class:`TransferEngine`), ZeroMQ's TCP (``sockets``), the moments at
which threads work (``gate``), and ``torch_npu`` where it is missing (``npu``). Semantics:

* a transfer moves real bytes, between addresses that were registered, when the step in which it was
  submitted is over; a held one when it is released. Its thread waits until then;
* it moves nothing and returns -1 when it is told to fail, when an address is not registered, when
  either engine is cut off, or when there is no such engine;
* messages between engines that cannot reach each other are lost;
* what is process-wide in vllm-ascend, its transfer engine and its config, is each rank's own.

Transfers do not say for which request they are; so there are no events of them, and what a rule
would learn from those alone is not judged.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import itertools
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from vllm.config import get_current_vllm_config
from vllm.distributed import parallel_state
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

from kvconform.engine.cluster import Cluster
from kvconform.engine.world import Pending
from kvconform.faults import gate, npu, sockets
from kvconform.faults.transport import TransportWorld

HOST = "127.0.0.1"
"""Where all engines say that they are."""

_PACKAGE = "vllm_ascend.distributed.kv_transfer"
_current: MooncakeWorld | None = None
_ports = itertools.count(20_000)


@dataclass(slots=True, eq=False)
class Read(Pending):
    """A transfer that waits for its moment, and its thread with it."""

    engine: TransferEngine
    number: int
    peer: str
    mine: Sequence[int]
    theirs: Sequence[int]
    lengths: Sequence[int]
    writes: bool
    thread: int
    answer: int = -1

    @property
    def name(self) -> str:  # type: ignore[override]
        """How messages call it."""
        return f"engine {self.engine.index} rank {self.engine.rank} read #{self.number}"

    def arrive(self) -> None:
        """The bytes move."""
        self.engine.world.move(self)
        self.engine.world.settle()


class TransferEngine:
    """Stands for ``mooncake.engine.TransferEngine``: what vllm-ascend calls of it."""

    def __init__(self) -> None:
        if _current is None:
            raise RuntimeError("kvconform's transfer engine works only within a run of kvconform")
        self.world = _current
        self.index = _engine_index()
        self.rank = parallel_state.get_world_group().rank
        self.regions: list[tuple[int, int]] = []
        self._port = next(_ports)
        self._numbers = itertools.count()

    def initialize(self, hostname: str, metadata: str, protocol: str, device: str) -> int:
        """Start it; 0: it has started."""
        self.world.transfer_engines[f"{hostname}:{self._port}"] = self
        return 0

    def get_rpc_port(self) -> int:
        """The port at which other engines find it, together with its host."""
        return self._port

    def register_memory(self, address: int, length: int) -> int:
        """Let transfers touch this memory."""
        self.regions.append((address, length))
        return 0

    def batch_register_memory(self, addresses: Sequence[int], lengths: Sequence[int]) -> int:
        """Let transfers touch all of this memory."""
        self.regions += zip(addresses, lengths, strict=True)
        return 0

    def batch_transfer_sync_read(
        self, peer: str, mine: Sequence[int], theirs: Sequence[int], lengths: Sequence[int]
    ) -> int:
        """Read from another engine's memory; 0, or -1 when it failed."""
        return self._transfer(peer, mine, theirs, lengths, writes=False)

    def batch_transfer_sync_write(
        self, peer: str, mine: Sequence[int], theirs: Sequence[int], lengths: Sequence[int]
    ) -> int:
        """Write to another engine's memory; 0, or -1 when it failed."""
        return self._transfer(peer, mine, theirs, lengths, writes=True)

    def _transfer(
        self,
        peer: str,
        mine: Sequence[int],
        theirs: Sequence[int],
        lengths: Sequence[int],
        writes: bool,
    ) -> int:
        read = Read(
            self, next(self._numbers), peer, mine, theirs, lengths, writes, threading.get_ident()
        )
        self.world.gate.keep(lambda: self.world.reads.append(read))
        return read.answer

    def covers(self, addresses: Sequence[int], lengths: Sequence[int]) -> bool:
        """Whether all of this memory was registered."""
        return all(
            any(base <= a and a + n <= base + size for base, size in self.regions)
            for a, n in zip(addresses, lengths, strict=True)
        )


class MooncakeWorld(TransportWorld):
    """Holds, releases and fails Mooncake's transfers, and cuts engines off.

    What is in ``TransportWorld`` it can do as well: a MultiConnector may have children of both
    kinds.

    Attributes:
        gate: lets the target's threads work.
        network: carries their messages.
        transfer_engines: by ``host:port``.
        reads: transfers that nothing has been decided about.
    """

    offers = frozenset({"route", "hold", "release", "fail", "cut"})
    runs_threads = True

    def begin(self, cluster: Cluster) -> None:
        global _current
        super().begin(cluster)
        self.gate = gate.current = gate.Gate(_engine_index)
        self.network = sockets.current = sockets.Network(self._delivers)
        self.transfer_engines: dict[str, TransferEngine] = {}
        self.reads: list[Read] = []
        self.own: dict[tuple[int, int], Any] = {}
        self._threads = set(threading.enumerate())
        _current = self
        config = sys.modules.get("vllm_ascend.ascend_config")
        if config is not None:  # one a process, and the last run's was for another shape
            config.clear_ascend_config()

    def end(self) -> None:
        global _current
        self.gate.end()
        self.network.end()
        for thread in set(threading.enumerate()) - self._threads:
            thread.join(gate.PATIENCE)
        self.network.close()
        if _current is self:
            _current = gate.current = sockets.current = None
        super().end()

    def settle(self) -> None:
        """A step is over: threads work, and transfers that are not held move, in a fixed order."""
        while True:
            self.gate.settle()
            reads, self.reads = self.reads, []
            if not reads:
                return
            for read in sorted(reads, key=lambda r: (r.engine.index, r.engine.rank, r.number)):
                if self._held("load", read.engine.rank):
                    self.pending.append(read)
                else:
                    self.move(read)
                    self.gate.settle()

    def move(self, opened: Any, lost: bool = False) -> None:
        """The bytes of a transfer move, as far as they do not fail."""
        if not isinstance(opened, Read):
            super().move(opened, lost)
            return
        read, peer = opened, self.transfer_engines.get(opened.peer)
        if (
            peer is not None
            and not lost
            and not self._cut & {read.engine.index, peer.index}
            and read.engine.covers(read.mine, read.lengths)
            and peer.covers(read.theirs, read.lengths)
            and not self._chosen_to_fail([0], read.engine.rank)[0]
        ):
            for mine, theirs, length in zip(read.mine, read.theirs, read.lengths, strict=True):
                to, source = (theirs, mine) if read.writes else (mine, theirs)
                ctypes.memmove(to, source, length)
            read.answer = 0
        self.gate.let_go(read.thread)

    def open_transfers(self) -> int:
        return super().open_transfers() + sum(isinstance(p, Read) for p in self.pending)

    def _delivers(self) -> bool:
        """Whether the engine of this thread can talk to the one that prefills."""
        return not self._cut & {0, gate.here.engine}


class _EachRank:
    """Stands for an object that vllm-ascend has once a process: each rank gets one of its own."""

    def __init__(self, cls: type) -> None:
        self._cls = cls

    def __getattr__(self, name: str) -> Any:
        assert _current is not None
        key = (_engine_index(), parallel_state.get_world_group().rank)
        return getattr(_current.own.setdefault(key, self._cls()), name)


def _engine_index() -> int:
    """The engine whose process this would be."""
    transfer = get_current_vllm_config().kv_transfer_config
    assert transfer is not None
    assert transfer.engine_id is not None
    return int(transfer.engine_id.lstrip("e").partition("_")[0])


@functools.cache
def prepare() -> None:
    """Import the connector's module onto this world; nothing of it works outside of a run.

    Raises:
        ImportError: vllm-ascend is not installed, or wants something that is not.
    """
    before = {name: sys.modules.get(name) for name in ("mooncake", "mooncake.engine")}
    npu.install()
    engine = ModuleType("mooncake.engine", TransferEngine.__doc__)
    vars(engine)["TransferEngine"] = TransferEngine
    sys.modules["mooncake"] = ModuleType("mooncake")
    sys.modules["mooncake.engine"] = engine
    try:
        holder = importlib.import_module(f"{_PACKAGE}.utils.mooncake_transfer_engine")
        vars(holder)["global_te"] = _EachRank(holder.GlobalTE)
        module = importlib.import_module(f"{_PACKAGE}.kv_p2p.mooncake_connector")
    except ImportError:
        npu.remove()
        for name, there in before.items():
            del sys.modules[name]
            if there is not None:
                sys.modules[name] = there
        raise
    if "MooncakeConnectorV1" not in KVConnectorFactory._registry:  # as vllm-ascend's plugin does
        KVConnectorFactory.register_connector(
            "MooncakeConnectorV1", module.__name__, "MooncakeConnector"
        )
    vars(module).update(
        zmq=sockets.module,
        queue=_Queues(),
        ThreadPoolExecutor=gate.Executor,
        get_ip=lambda: HOST,
    )


class _Queues:
    """Stands for the module ``queue``."""

    Queue = gate.Queue
