"""How the two halves reach the store and other engines: a protocol, and one that ships with it.

Two objects of the same kind exist in an engine: one beside the scheduler, which asks for keys, and
one per rank beside the worker, which moves bytes. They have nothing in common but the store behind
them, so a remote store needs another transport and no other change.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, cast

from kvconform.connectors.ascend.device import Device
from kvconform.connectors.ascend.exchange import Exchange
from kvconform.connectors.ascend.metadata import Source
from kvconform.connectors.ascend.mover import AtOnce, carry_out, mover_for
from kvconform.connectors.ascend.remote import connect
from kvconform.connectors.ascend.settings import Settings
from kvconform.connectors.ascend.side import WorkerSide
from kvconform.connectors.ascend.store import HostStore, Watcher
from kvconform.connectors.ascend.transfers import Outcome, Transfer

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole

__all__ = ["LocalTransport", "MakeTransport", "Outcome", "Transfer", "Transport", "make_transport"]


class Transport(Protocol):
    """What the connector asks of a store.

    Holders are job ids. Keys of one call are the block hashes of one request, in order: a chain, of
    which only a leading part is of use.
    """

    # -- beside the scheduler ---------------------------------------------------------------------

    def lookup(self, keys: Sequence[bytes]) -> int | None:
        """Leading keys that every rank can load now; None: not known yet, ask again. Holds none."""

    def pin(self, holder: str, keys: Sequence[bytes]) -> int:
        """Keep the leading keys that are there until ``unpin``; how many they are."""

    def unpin(self, holder: str) -> None:
        """The holder needs its pins no longer."""

    def reserve(self, holder: str, keys: Sequence[bytes]) -> list[int]:
        """Indices of the keys that the holder shall save: those that nobody has or is saving.

        Room is made by eviction; where there is none, fewer are granted, or none.
        """

    def commit(self, holder: str) -> None:
        """Every rank has saved all that was granted: it may be found from now on."""

    def abandon(self, holder: str) -> None:
        """What was granted will not be complete: forget it."""

    def clear(self) -> bool:
        """Nothing saved, or being saved, before this call is found after it; False if it failed."""

    def watch(self, watcher: Watcher) -> bool:
        """Tell ``watcher`` what becomes of keys; False: this transport does not know."""

    # -- beside a worker --------------------------------------------------------------------------

    def register(self, device: Device) -> None:
        """The rank's KV memory, before its first transfer."""

    def submit(self, transfer: Transfer) -> None:
        """Start a transfer. It never raises for KV that is not there: the outcome tells.

        An offer ends when it was pulled or released, or when its lease is over.
        """

    def release(self, source: Source) -> None:
        """Tell the rank that offers ``source`` that nothing of it is needed; it may not hear."""

    def poll(self) -> list[Outcome]:
        """Transfers that ended since the last poll, each exactly once."""

    def wait(self, transfer_id: str) -> Outcome:
        """Block until this transfer has ended; ``poll`` does not return it as well."""

    # -- both -------------------------------------------------------------------------------------

    def shutdown(self) -> None:
        """The engine ends. Calling it again does nothing."""


class LocalTransport(WorkerSide):
    """The store is in this process, and bytes move at once where the device lets them.

    That is the case when scheduler and worker share the process (one rank, vLLM's ``uni`` executor,
    the default for world size 1). With a process for each rank, a worker finds no pin and no
    reservation in its own, empty store: every save fails, nothing is ever promised, and the engine
    computes everything itself. Several ranks need a transport that spans processes: ``remote``.

    Args:
        store: shared by scheduler and workers.
        rank: whose shards this transport moves.
        exchange: this rank's dealings with other engines.
    """

    def __init__(self, store: HostStore, rank: int, exchange: Exchange | None = None) -> None:
        self.store = store
        self.rank = rank
        super().__init__(AtOnce(self._move), exchange or Exchange("", rank))

    def lookup(self, keys: Sequence[bytes]) -> int | None:
        """See ``Transport``; this one always knows."""
        return self.store.lookup(keys)

    def pin(self, holder: str, keys: Sequence[bytes]) -> int:
        """See ``Transport``."""
        return self.store.pin(holder, keys)

    def unpin(self, holder: str) -> None:
        """See ``Transport``."""
        self.store.unpin(holder)

    def reserve(self, holder: str, keys: Sequence[bytes]) -> list[int]:
        """See ``Transport``."""
        return self.store.reserve(holder, keys)

    def commit(self, holder: str) -> None:
        """See ``Transport``."""
        self.store.commit(holder)

    def abandon(self, holder: str) -> None:
        """See ``Transport``."""
        self.store.abandon(holder)

    def clear(self) -> bool:
        """See ``Transport``."""
        self.store.clear()
        return True

    def watch(self, watcher: Watcher) -> bool:
        """See ``Transport``."""
        self.store.watch(watcher)
        return True

    def register(self, device: Device) -> None:
        """See ``Transport``."""
        self._mover = mover_for(device, f"rank {self.rank}", self._move)
        self._exchange.register(device)

    def move(self, transfer: Transfer) -> Outcome:
        """Copy the bytes of a transfer, and nothing else: the outcome is not kept for ``poll``.

        For transports that wrap this one and choose another moment.
        """
        if transfer.direction == "pull":
            return self._exchange.move(transfer)
        return carry_out(self._move, transfer, math.inf)

    def _move(self, transfer: Transfer, deadline: float) -> Sequence[int]:
        """Blocks that were not moved; it takes no longer than the device does."""
        move = {"load": self._load, "save": self._save}[transfer.direction]
        return move(transfer)

    def _load(self, transfer: Transfer) -> list[int]:
        found, shards, missing = [], [], []
        for key, block_id in zip(transfer.keys, transfer.block_ids, strict=True):
            shard = self.store.read(transfer.id, key, self.rank)
            if shard is None:
                missing.append(block_id)
            else:
                found.append(block_id)
                shards.append(shard)
        transfer.device.write(found, shards, transfer.after)
        return missing

    def _save(self, transfer: Transfer) -> list[int]:
        shards = transfer.device.read(transfer.block_ids, transfer.after)
        return [
            block_id
            for key, block_id, shard in zip(transfer.keys, transfer.block_ids, shards, strict=True)
            if not self.store.write(transfer.id, key, self.rank, shard)
        ]


MakeTransport = Callable[
    ["VllmConfig", "KVConnectorRole", int, Callable[[], LocalTransport]], Transport
]
"""A factory: ``factory(vllm_config, role, rank, make_default)``.

``rank`` is the worker's, and 0 beside the scheduler. ``make_default`` makes the ``LocalTransport``
that the connector would have had.
"""


def make_transport(
    settings: Settings, vllm_config: VllmConfig, role: KVConnectorRole, rank: int
) -> Transport:
    """The transport of one half: to the store at an address, or by a factory, as the settings say.

    Raises:
        ValueError: the setting is not of the form ``package.module:factory``.
    """

    def make_default() -> LocalTransport:
        # Shards of one number of ranks are of no use to another: they share nothing.
        name = f"{settings.store}, {settings.world_size} ranks"
        store = HostStore.named(
            name, settings.capacity_blocks, settings.world_size, settings.verify
        )
        return LocalTransport(store, rank, Exchange.of(settings, rank))

    if settings.remote is not None:
        return connect(settings, settings.remote, role, rank)
    if settings.transport is None:
        return make_default()
    module, colon, name = settings.transport.partition(":")
    if not (module and colon and name):
        raise ValueError(f"transport must be 'package.module:factory', got {settings.transport!r}")
    factory = cast(MakeTransport, getattr(importlib.import_module(module), name))
    return factory(vllm_config, role, rank, make_default)
