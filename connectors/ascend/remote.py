"""The transport to a store in another process, or in another thread of the scheduler's.

The scheduler never waits long: a lookup that is not answered at once is "not known yet", and its
answer is picked up when vLLM asks again; pins and reservations wait a few milliseconds. A store
that is away has nothing and takes nothing, so the engine computes everything itself until the store
is back; nobody has to be told.

A worker's transfers are carried out one after another by a background thread, see ``mover``.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, wait
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole

from kvconform.connectors.ascend.device import Device
from kvconform.connectors.ascend.exchange import Exchange
from kvconform.connectors.ascend.link import Link
from kvconform.connectors.ascend.mover import Thread
from kvconform.connectors.ascend.server import StoreServer
from kvconform.connectors.ascend.service import AddressTakenError
from kvconform.connectors.ascend.settings import RemoteStore, Settings
from kvconform.connectors.ascend.side import WorkerSide
from kvconform.connectors.ascend.store import HostStore, Watcher
from kvconform.connectors.ascend.transfers import GoneError, Transfer
from kvconform.connectors.ascend.wire import Message, WireError, pack, store_title, unpack

_logger = logging.getLogger(__name__)

_CLEAR_SECONDS = 1.0  # an administrator's call, not a step's


class RemoteTransport(WorkerSide):
    """See ``transport.Transport``; connects at once, and again whenever it has to.

    Args:
        remote: the store.
        title: what the engine takes it for, see ``wire.store_title``.
        rank: whose shards this transport moves.
        server: ends with this transport, if there is one.
        exchange: this rank's dealings with other engines.

    Attributes:
        link: the connection.
    """

    def __init__(
        self,
        remote: RemoteStore,
        title: str,
        rank: int,
        server: StoreServer | None = None,
        exchange: Exchange | None = None,
    ) -> None:
        self.link = Link(remote, title)
        self.rank = rank
        self._remote = remote
        self._server = server
        self._lookups: dict[tuple[bytes, ...], tuple[float, Future[Message]]] = {}
        shards = _Shards(self.link, remote, rank)
        mover = Thread(remote.address, remote.transfer_seconds, shards.move)
        super().__init__(mover, exchange or Exchange("", rank))

    # -- beside the scheduler ---------------------------------------------------------------------

    def lookup(self, keys: Sequence[bytes]) -> int | None:
        """See ``Transport``; 0 if the store is gone, or has not answered for a lease's length."""
        if not keys:
            return 0
        chain = tuple(keys)
        patience = 0.0
        if chain not in self._lookups:
            self._drop_old_lookups()
            # A store that keeps one lookup waiting would keep the next waiting too.
            if all(asked.done() for _, asked in self._lookups.values()):
                patience = self._remote.answer_seconds
            asked = self.link.ask("lookup", self._remote.lease_seconds, keys=chain)
            self._lookups[chain] = time.monotonic(), asked
        _, asked = self._lookups[chain]
        if not wait([asked], patience).done:
            return None
        del self._lookups[chain]
        return asked.result().answer[0] if asked.exception() is None else 0

    def _drop_old_lookups(self) -> None:
        """Nobody will ask for these again, or what they say has been true too long ago."""
        oldest = time.monotonic() - 2 * self._remote.lease_seconds
        for chain in [c for c, (since, _) in self._lookups.items() if since < oldest]:
            del self._lookups[chain]

    def pin(self, holder: str, keys: Sequence[bytes]) -> int:
        """See ``Transport``; 0 if the answer does not come in time, though it may be pinned."""
        answer = self._ask("pin", holder=holder, keys=tuple(keys))
        return answer[0] if answer else 0

    def unpin(self, holder: str) -> None:
        """See ``Transport``."""
        self._tell("unpin", holder)

    def reserve(self, holder: str, keys: Sequence[bytes]) -> list[int]:
        """See ``Transport``; nothing is granted if the answer does not come in time."""
        answer = self._ask("reserve", holder=holder, keys=tuple(keys))
        if not answer:
            self._tell("abandon", holder)  # it may have been granted all the same
        return list(answer or ())

    def commit(self, holder: str) -> None:
        """See ``Transport``."""
        self._tell("commit", holder)

    def abandon(self, holder: str) -> None:
        """See ``Transport``."""
        self._tell("abandon", holder)

    def clear(self) -> bool:
        """See ``Transport``; False if the store does not say that it is done."""
        self._lookups.clear()  # an answer from before must not be believed after
        return self._ask("clear", _CLEAR_SECONDS) is not None

    def watch(self, watcher: Watcher) -> bool:
        """See ``Transport``; the store does not say what it evicts."""
        return False

    def _ask(self, op: str, seconds: float | None = None, **fields: Any) -> tuple[int, ...] | None:
        """The store's answer, or None if it does not come in time."""
        seconds = self._remote.answer_seconds if seconds is None else seconds
        try:
            return self.link.ask(op, seconds, **fields).result(seconds).answer
        except (GoneError, TimeoutError):
            return None

    def _tell(self, op: str, holder: str) -> None:
        """Nobody waits for the answer; what is lost on the way, the next beat mends."""
        self.link.ask(op, self._remote.lease_seconds, holder=holder)

    # -- beside a worker --------------------------------------------------------------------------

    def register(self, device: Device) -> None:
        """See ``Transport``."""
        self._exchange.register(device)

    # -- both -------------------------------------------------------------------------------------

    def shutdown(self) -> None:
        """See ``Transport``; transfers that are open fail, and the threads have ended."""
        self.link.close()
        super().shutdown()
        if self._server is not None:
            self._server.close()


class _Shards:
    """Moves a rank's shards, in the thread of a ``Mover``."""

    def __init__(self, link: Link, remote: RemoteStore, rank: int) -> None:
        self._link = link
        self._remote = remote
        self._rank = rank

    def move(self, transfer: Transfer, deadline: float) -> list[int]:
        """Blocks that were not moved."""
        move = {"load": self._load, "save": self._save}[transfer.direction]
        return move(transfer, deadline)

    def _load(self, transfer: Transfer, deadline: float) -> list[int]:
        """Blocks that the store did not have."""
        failed: list[int] = []
        keys, blocks = transfer.keys, transfer.block_ids
        while keys:
            answer = self._ask("read", transfer, deadline, keys=keys)
            seen, *found = answer.answer
            if not seen:
                raise WireError("a shard is larger than a message")
            shards = [unpack(shard) for shard in answer.shards]
            transfer.device.write([blocks[index] for index in found], shards, transfer.after)
            missing = set(range(seen)).difference(found)
            failed += [blocks[index] for index in sorted(missing)]
            keys, blocks = keys[seen:], blocks[seen:]
        return failed

    def _save(self, transfer: Transfer, deadline: float) -> list[int]:
        """Blocks that the store did not take."""
        failed: list[int] = []
        shards = transfer.device.read(transfer.block_ids, transfer.after)
        packed = [pack(shard) for shard in shards]
        for part in self._portions(packed):
            answer = self._ask(
                "write", transfer, deadline, keys=transfer.keys[part], shards=tuple(packed[part])
            )
            taken = set(answer.answer)
            blocks = transfer.block_ids[part]
            failed += [block for index, block in enumerate(blocks) if index not in taken]
        return failed

    def _portions(self, packed: Sequence[memoryview]) -> Iterator[slice]:
        """Parts that fit in a message, or are a single shard."""
        start = size = 0
        for index, shard in enumerate(packed):
            size += len(shard)
            if size > self._remote.max_message_bytes and index > start:
                yield slice(start, index)
                start, size = index, len(shard)
        yield slice(start, len(packed))

    def _ask(self, op: str, transfer: Transfer, deadline: float, **fields: Any) -> Message:
        return self._link.ask_until(
            deadline,
            op,
            holder=transfer.id,
            rank=self._rank,
            layout=transfer.device.layout,
            **fields,
        )


def connect(
    settings: Settings, remote: RemoteStore, role: KVConnectorRole, rank: int
) -> RemoteTransport:
    """The transport of one half of an engine, with the server if this engine is to serve.

    Raises:
        ValueError: the store cannot be served at the address.
    """
    server = None
    if remote.serve and role == KVConnectorRole.SCHEDULER:
        store = HostStore(settings.capacity_blocks, settings.world_size, settings.verify)
        try:
            server = StoreServer(store, settings.store, remote)
        except AddressTakenError:
            # Of several engines with one configuration, the first one serves.
            _logger.info("The KV store at %s is served already", remote.address)
    title = store_title(settings.store, settings.world_size)
    return RemoteTransport(remote, title, rank, server, Exchange.of(settings, rank))
