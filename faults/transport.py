"""A world whose transfers obey orders.

Connectors that make their transport through a factory get one from here: it wraps the transport
that they would have had, and decides *when* bytes move and whether they do. Semantics:

* a transfer that is not held moves its bytes at once, when it is submitted;
* a held one stays open until it is released; releases come in any order, per rank;
* who *waits* for a transfer lets time pass until it is done: it is released on the spot;
* a failed load or save moves none of its failed blocks, and says which they are; a torn one moves
  half of the bytes of each;
* a transfer that is lost ends when the transport gives it up, with all its blocks failed;
* a busy store does not answer lookups; the connector has to say ``None``;
* a full store grants no room for a save;
* a forgetful store has nothing left of what it has just found, but for what somebody holds;
* memory of the store fails: a block of what was found is another one from then on;
* an engine that is cut off can be read by no other, and hears nothing from them;
* of an engine that has died no byte moves any more, and nobody reads from it; what it kept in the
  store is given back when the store has not heard of it for long enough;
* where vLLM cannot be told of it, as with several KV groups before 0.32, no load fails.

At each move the blocks' owners are compared with those at the time the transfer was opened.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from kvconform.engine import compat
from kvconform.engine.world import Pending, World
from kvconform.faults.damage import TearingDevice, rot
from kvconform.faults.obedient import ObedientTransport
from kvconform.scenario.actions import Direction
from kvconform.scenario.trace import Event, Kind

if TYPE_CHECKING:
    from kvconform.engine.cluster import Cluster
    from kvconform.engine.engine import Engine

_current: TransportWorld | None = None

LEASE_SECONDS = 10.0
"""How long the store keeps something for one of which it hears nothing any more."""

_HARNESS = "kvconform"
"""Who pins what is damaged, while it is."""


@dataclass(slots=True, eq=False)
class Open(Pending):
    """A transfer whose bytes have not moved."""

    transfer: Any
    transport: ObedientTransport
    epochs: list[int]
    name: str
    step: int
    planned: bool | None
    """Its scheduler half has planned just this; None where that cannot be seen."""

    @property
    def request(self) -> str:  # type: ignore[override]
        """Whose it is."""
        return str(self.transfer.request_id)

    def arrive(self) -> None:
        """The bytes move."""
        self.transport.world.move(self)


@dataclass(slots=True)
class _Failure:
    transfers: int
    blocks: str
    rank: int | None
    direction: str


class TransportWorld(World):
    """Holds, releases, reorders and fails transfers, and leaves lookups unanswered."""

    offers = frozenset(
        {"route", "repeat", "hold", "release", "drop", "busy", "refuse", "forget", "fail",
         "fail-save", "cut", "corrupt", "restart"}
    )  # fmt: skip
    crashes = True
    remembers = True

    def __init__(self) -> None:
        super().__init__()
        self._cluster: Cluster | None = None
        self._holds: list[tuple[Direction, int | None]] = []
        self._cut: set[int] = set()
        self._planned: dict[tuple[int | None, str], set[bytes]] = {}
        self._offers: dict[tuple[str, int], tuple[int, Sequence[int], list[int]]] = {}
        self._busy = 0
        self._refusals = 0
        self._forgetful = 0
        self._failures: list[_Failure] = []
        self._counts: dict[tuple[str, str, int], int] = {}
        self._held_there: dict[tuple[str, str, int | None], ObedientTransport] = {}
        self._orphans: list[tuple[float, str, ObedientTransport]] = []
        self._damages: list[_Failure] = []
        self._clock = 0.0
        self._unheard: Counter[int] = Counter()

    def begin(self, cluster: Cluster) -> None:
        global _current
        self._cluster = cluster
        _current = self

    def end(self) -> None:
        global _current
        if _current is self:
            _current = None
        super().end()
        self._cluster = None

    def hold(self, direction: Direction, rank: int | None) -> bool:
        super().hold(direction, rank)
        assert self._cluster is not None
        order = (direction, rank % self._cluster.shape.ranks if rank is not None else None)
        if direction != "route" and order not in self._holds:
            self._holds.append(order)
        return True

    def unhold(self) -> bool:
        had = bool(self._holds)
        self._holds.clear()
        return super().unhold() or had

    def cut(self, engine: int, back: bool) -> bool:
        assert self._cluster is not None
        engine %= len(self._cluster.engines)
        if self._cluster.shape.topology != "pd" or back is (engine not in self._cut):
            return False
        (self._cut.discard if back else self._cut.add)(engine)
        return True

    def busy(self, lookups: int) -> bool:
        self._busy += lookups
        return True

    def refuse(self, saves: int) -> bool:
        self._refusals += saves
        return True

    def _may_fail_loads(self) -> bool:
        """Whether vLLM can be told of it at all: until 0.27 not with several KV groups."""
        assert self._cluster is not None
        return self._cluster.shape.groups == 1 or compat.NAMES_FAILED_REQUESTS

    def forget(self, lookups: int) -> bool:
        if not self._may_fail_loads():
            return False
        self._forgetful += lookups
        return True

    def fail(self, transfers: int, blocks: str, rank: int | None, direction: str = "load") -> bool:
        assert self._cluster is not None
        where = rank % self._cluster.shape.ranks if rank is not None else None
        if direction != "save" and not self._may_fail_loads():
            return False
        self._failures.append(_Failure(transfers, blocks, where, direction))
        return True

    def corrupt(self, lookups: int, rank: int | None) -> bool:
        assert self._cluster is not None
        where = rank % self._cluster.shape.ranks if rank is not None else None
        self._damages.append(_Failure(lookups, "first", where, "load"))
        return True

    def died(self, engine: int) -> int:
        self.pending = [
            p for p in self.pending if not (isinstance(p, Open) and p.transport.engine == engine)
        ]
        self._unheard.pop(engine, None)
        left = [(key, t) for key, t in self._held_there.items() if t.engine == engine]
        for key, transport in left:
            del self._held_there[key]
            self._orphans.append((self._clock + LEASE_SECONDS, key[0], transport))
        return len(left)

    def passes(self, seconds: float) -> None:
        self._clock += seconds
        kept = []
        for deadline, holder, transport in self._orphans:
            if deadline <= self._clock:
                transport.inner.unpin(holder)
                transport.inner.abandon(holder)
            else:
                kept.append((deadline, holder, transport))
        self._orphans = kept

    def opened(self, selector: int) -> Open | None:
        opened = [p for p in self.pending if isinstance(p, Open) and self._may_lose(p)]
        return opened[-1 - selector % len(opened)] if opened else None

    def _may_lose(self, opened: Open) -> bool:
        return opened.transfer.direction == "save" or self._may_fail_loads()

    def drop(self, transfer: Pending) -> None:
        assert isinstance(transfer, Open)
        self.pending.remove(transfer)
        self.move(transfer, lost=True)

    def calm(self) -> None:
        self._busy = self._refusals = self._forgetful = 0
        self._failures.clear()
        self._damages.clear()
        self._cut.clear()
        self.passes(LEASE_SECONDS)
        super().calm()

    def open_transfers(self) -> int:
        return sum(isinstance(p, Open) for p in self.pending)

    def child(self, extra: Any) -> int | None:
        """Which child of a composition is set up like this, if it is one."""
        assert self._cluster is not None
        children = self._cluster.extra.get("connectors", ())
        own = [child.get("kv_connector_extra_config", {}) for child in children]
        return own.index(dict(extra)) if dict(extra) in own else None

    # -- what the transports ask ------------------------------------------------------------------

    def answers(self) -> bool:
        """Whether the store answers this lookup."""
        if self._busy:
            self._busy -= 1
            return False
        return True

    def refuses(self) -> bool:
        """Whether the store has no room for this save."""
        if self._refusals:
            self._refusals -= 1
            return True
        return False

    def forgets(self) -> bool:
        """Whether the store forgets what it has found just now."""
        if self._forgetful:
            self._forgetful -= 1
            return True
        return False

    def damages(self, transport: ObedientTransport, key: bytes) -> None:
        """The store's memory fails where this block lies, if the time has come."""
        if not self._damages:
            return
        damage = self._damages[0]
        damage.transfers -= 1
        if not damage.transfers:
            del self._damages[0]
        engine = self._engine(transport)
        ranks = range(engine.shape.ranks) if damage.rank is None else (damage.rank,)
        transport.inner.store.pin(_HARNESS, (key,))
        for rank in ranks:
            shard = transport.inner.store.read(_HARNESS, key, rank)
            if shard is not None:
                rot(shard)
        transport.inner.store.unpin(_HARNESS)
        engine.trace.emit(Event(Kind.CORRUPTED, engine.index, engine.step_number))

    def forgot(self, transport: ObedientTransport, blocks: int) -> None:
        """The store has lost so many blocks, but for those that somebody holds."""
        engine = self._engine(transport)
        engine.trace.emit(
            Event(
                Kind.FORGOT,
                engine.index,
                engine.step_number,
                data={"blocks": blocks, **transport.whose},
            )
        )

    def submit(self, transport: ObedientTransport, transfer: Any) -> None:
        """A transfer is opened."""
        engine = self._engine(transport)
        key = (transfer.request_id, transfer.direction, transport.rank)
        count = self._counts[key] = self._counts.get(key, 0) + 1
        opened = Open(
            transfer,
            transport,
            [engine.memory.epochs[b] for b in transfer.block_ids],
            f"{transfer.request_id} {transfer.direction} rank {transport.rank} #{count - 1}",
            engine.step_number,
            self._as_planned(transport, transfer),
        )
        save = transfer.direction == "save"
        foreign = engine.holdings.foreign(transfer.request_id, transfer.block_ids) if save else []
        self._unheard[engine.index] += 1
        self._emit(Kind.OPENED, opened, foreign=foreign)
        if self._held(transfer.direction, transport.rank):
            self.pending.append(opened)
        else:
            self.move(opened)

    def _as_planned(self, transport: ObedientTransport, transfer: Any) -> bool | None:
        if transfer.keys:
            planned = self._planned.get((transport.child, transfer.id), set())
            return planned >= set(transfer.keys)
        if transfer.source is not None and transfer.block_ids:
            return self._engine(transport).holdings.plans.holds(
                transfer.block_ids, transfer.source.block_ids
            )
        return None

    def planned(self, transport: ObedientTransport, holder: str, keys: Sequence[bytes]) -> None:
        """A scheduler half holds keys in the store for a transfer that it plans."""
        self._planned.setdefault((transport.child, holder), set()).update(keys)

    def holds(self, transport: ObedientTransport, what: str, holder: str) -> None:
        """Something is kept in the store for this holder from now on."""
        self._held_there[holder, what, transport.child] = transport

    def lets_go(self, transport: ObedientTransport, what: str, holder: str) -> None:
        """It is kept no longer."""
        self._held_there.pop((holder, what, transport.child), None)

    def kept(self) -> list[tuple[int, str, int | None]]:
        # A connector that nobody asks any more cannot hear of its last transfers.
        return [
            (transport.engine, f"{what} by {holder}", child)
            for (holder, what, child), transport in self._held_there.items()
            if not self._unheard[transport.engine]
        ]

    def hurry(self, transport: ObedientTransport, transfer_id: str) -> None:
        """The connector waits for this transfer: it is done now."""
        for opened in self.pending:
            if (
                isinstance(opened, Open)
                and opened.transport is transport
                and opened.transfer.id == transfer_id
            ):
                self.pending.remove(opened)
                self.move(opened)
                return

    def closed(self, transport: ObedientTransport, outcome: Any) -> None:
        """The connector has been told."""
        engine = self._engine(transport)
        self._unheard[engine.index] -= outcome.direction != "offer"
        engine.trace.emit(
            Event(
                Kind.CLOSED, engine.index, engine.step_number, outcome.request_id, transport.rank,
                {"transfer": outcome.transfer_id, "direction": outcome.direction,
                 **transport.whose},
            )
        )  # fmt: skip

    def reaches(self, transport: ObedientTransport, source: Any) -> bool:
        """Whether the engine of ``transport`` can reach the one that offers ``source``."""
        assert self._cluster is not None
        index, life = _engine_index(source.engine_id)
        alive = self._cluster.engines[index].life.number == life
        return alive and not self._cut & {transport.engine, index}

    def _held(self, direction: str, rank: int) -> bool:
        kind = "load" if direction == "pull" else direction
        return any(d in (kind, "any") and r in (rank, None) for d, r in self._holds)

    def move(self, opened: Open, lost: bool = False) -> None:
        """The bytes of a transfer move, as far as they do not fail; none of one that is lost."""
        transport, transfer = opened.transport, opened.transfer
        stale = self._engine(transport).memory.stale(transfer.block_ids, opened.epochs)
        chosen, torn = ((), False) if lost else self._failed(transfer, transport)
        failed = set(transfer.block_ids) if lost else set(chosen)
        given = frozenset(failed)
        kept = [i for i, block in enumerate(transfer.block_ids) if block not in failed or torn]
        unwritten, engine = [], self._engine(transport)
        if transfer.direction == "save":
            saved = [transfer.block_ids[i] for i in kept]
            unwritten = engine.memory.unwritten(transport.rank, saved)
        source, gone, broken = transfer.source, False, engine.device.failures
        if source is not None:
            reached = self.reaches(transport, source)
            gone = reached and self._offer_is_stale(source, transport.rank)
            source = replace(
                source,
                offer_id=source.offer_id if reached else "out of reach",
                block_ids=tuple(source.block_ids[i] for i in kept if i < len(source.block_ids)),
            )
        outcome = transport.inner.move(
            replace(
                transfer,
                keys=tuple(transfer.keys[i] for i in kept if transfer.keys),
                block_ids=tuple(transfer.block_ids[i] for i in kept),
                source=source,
                device=TearingDevice(transfer.device, failed) if torn else transfer.device,
            )
        )
        failed.update(outcome.failed_block_ids)
        if engine.device.failures != broken:
            given |= failed
        if not compat.REPORTS_FAILED_LOADS:  # it would, if anybody asked
            self._engine(transport).memory.failed(failed)
        transport.done.append(replace(outcome, failed_block_ids=tuple(sorted(failed))))
        read_stale = gone and len(failed) < len(transfer.block_ids)
        self._emit(
            Kind.MOVED, opened, stale=stale if kept else [], failed=sorted(failed),
            given=sorted(given),
            unwritten=unwritten,
            counted=bool(unwritten) and engine.holdings.counted(transfer.request_id, unwritten),
            source=transfer.source and _engine_index(transfer.source.engine_id)[0],
            read_stale=read_stale,
        )  # fmt: skip

    def offered(self, transport: ObedientTransport, transfer: Any) -> None:
        """An engine lets others read blocks: they are its request's at this moment."""
        epochs = [self._engine(transport).memory.epochs[b] for b in transfer.block_ids]
        self._offers[transfer.id, transport.rank] = (transport.engine, transfer.block_ids, epochs)

    def _offer_is_stale(self, source: Any, rank: int) -> bool:
        """Whether blocks of an offer have changed hands since it was made."""
        assert self._cluster is not None
        if (source.offer_id, rank) not in self._offers:
            return False
        engine, blocks, epochs = self._offers[source.offer_id, rank]
        return bool(self._cluster.engines[engine].memory.stale(blocks, epochs))

    def _failed(self, transfer: Any, transport: ObedientTransport) -> tuple[Sequence[int], bool]:
        if not transfer.block_ids:
            return (), False
        direction = "save" if transfer.direction == "save" else "load"
        return self._chosen_to_fail(transfer.block_ids, transport.rank, direction)

    def _chosen_to_fail(
        self, blocks: Sequence[int], rank: int, direction: str = "load"
    ) -> tuple[Sequence[int], bool]:
        """Those of a transfer's blocks that fail on this rank, and whether half of each moves."""
        for failure in self._failures:
            if failure.rank in (rank, None) and failure.direction == direction:
                failure.transfers -= 1
                if not failure.transfers:
                    self._failures.remove(failure)
                chosen = {"first": blocks[:1], "last": blocks[-1:]}.get(failure.blocks, blocks)
                return chosen, failure.blocks == "torn"
        return (), False

    def _engine(self, transport: ObedientTransport) -> Engine:
        assert self._cluster is not None
        return self._cluster.engines[transport.engine]

    def _emit(self, kind: Kind, opened: Open, **more: Any) -> None:
        engine = self._engine(opened.transport)
        engine.trace.emit(
            Event(
                kind, engine.index, engine.step_number, opened.transfer.request_id,
                opened.transport.rank,
                {
                    "transfer": opened.name, "direction": opened.transfer.direction,
                    "blocks": list(opened.transfer.block_ids), "opened": opened.step,
                    "planned": opened.planned,
                    **opened.transport.whose,
                    **more,
                },
            )
        )  # fmt: skip


def connect(
    config: Any, role: Any, rank: int, make_default: Callable[[], Any]
) -> ObedientTransport:
    """The factory that targets name in their extra config.

    Raises:
        RuntimeError: outside a run of kvconform.
    """
    if _current is None:
        raise RuntimeError("kvconform's transport works only within a run of kvconform")
    engine, _ = _engine_index(config.kv_transfer_config.engine_id)
    child = _current.child(config.kv_transfer_config.kv_connector_extra_config)
    return ObedientTransport(make_default(), _current, engine, rank, child)


def _engine_index(engine_id: str) -> tuple[int, int]:
    """Which engine it is that has this id, and which of its lives."""
    index, _, life = engine_id.lstrip("e").partition("_")[0].partition("l")
    return int(index), int(life or 0)


def make_world(kind: str) -> World:
    """The world that a target needs: ``plain``, ``transport`` or ``mooncake``."""
    if kind == "mooncake":
        from kvconform.faults.mooncake import MooncakeWorld  # it brings ZeroMQ along

        return MooncakeWorld()
    return TransportWorld() if kind == "transport" else World()
