"""The process that has the store: answers the clients of ``remote``, see ``service``.

Started by an engine (``serve`` in the settings), in a thread of its scheduler's process, or on its
own, which outlives every engine::

    ASCEND_STORE_TOKEN=… python -m kvconform.connectors.ascend.server tcp://127.0.0.1:7777 \\
        --store my-model --world-size 2 --capacity-blocks 4096

A client that is not heard for the length of the lease loses its pins and reservations.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence

from kvconform.connectors.ascend.leases import Leases
from kvconform.connectors.ascend.service import AddressTakenError, Service
from kvconform.connectors.ascend.settings import RemoteStore
from kvconform.connectors.ascend.store import HostStore
from kvconform.connectors.ascend.wire import (
    Buffer,
    Message,
    WireError,
    pack,
    store_title,
    unpack,
)

_logger = logging.getLogger(__name__)

TOKEN_VARIABLE = "ASCEND_STORE_TOKEN"
"""Where a server on its own finds the token: a command line can be read by all users."""


class StoreServer:
    """A thread that serves a store until it is closed.

    Args:
        store: what is served.
        name: of the store; clients that want another one are refused.
        remote: where, for whom, and for how long.
        clock: seconds, for the leases.

    Raises:
        ValueError: the address is none, or may be reached by other machines and must not be.
        AddressTakenError: someone serves there already.
    """

    def __init__(
        self,
        store: HostStore,
        name: str,
        remote: RemoteStore,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._leases = Leases(store, remote.lease_seconds)
        self._max_bytes = remote.max_message_bytes
        self._layout = ""  # of all shards, as soon as there are some
        self._clock = clock
        self._service = Service(
            remote,
            store_title(name, store.world_size),
            self._answer,
            rest=self._expire,
            rest_seconds=remote.lease_seconds / 4,
        )
        self.address = self._service.address

    def close(self) -> None:
        """Stop serving. Calling it again does nothing."""
        self._service.close()

    # -- in the thread ----------------------------------------------------------------------------

    def _expire(self) -> None:
        # Only when no message waits: a sign of life may be among them.
        for client in self._leases.expire(self._clock()):
            _logger.info("Client %s of the KV store is gone", client)

    def _answer(self, message: Message) -> Message:
        if message.rank >= self._store.world_size:
            raise WireError(f"no rank {message.rank} here")
        if message.layout != (self._layout or message.layout) and message.op in ("read", "write"):
            raise WireError("KV is laid out in another way here")
        self._leases.hear(message.sender, self._clock())
        return self._do(message)

    def _do(self, message: Message) -> Message:
        """What an acceptable message asks for."""
        store, holder = self._store, message.holder
        answer: tuple[int, ...] = ()
        shards: tuple[Buffer, ...] = ()
        match message.op:
            case "lookup":
                answer = (store.lookup(message.keys),)
            case "pin":
                self._leases.take(message.sender, holder)
                answer = (store.pin(holder, message.keys),)
            case "unpin":
                store.unpin(holder)
                self._leases.forget(holder)
            case "reserve":
                self._leases.take(message.sender, holder)
                answer = tuple(store.reserve(holder, message.keys))
            case "commit":
                store.commit(holder)
                self._leases.forget(holder)
            case "abandon":
                store.abandon(holder)
                self._leases.forget(holder)
            case "clear":
                store.clear()
            case "read":
                answer, shards = self._read(message)
            case "write":
                answer = self._write(message)
            case "beat":
                self._leases.keep(message.sender, message.holders)
                answer = (max(1, int(self._leases.seconds * 1000)),)
            case "bye":
                self._leases.end(message.sender)
            case _:
                raise WireError(f"no operation {message.op!r}")
        return Message("ok", message.number, answer=answer, shards=shards)

    def _read(self, message: Message) -> tuple[tuple[int, ...], tuple[Buffer, ...]]:
        """How many keys were looked at, as many as fit in an answer, and the indices of those found
        with their shards."""
        found: list[int] = []
        shards: list[Buffer] = []
        size = 0
        for index, key in enumerate(message.keys):
            shard = self._store.read(message.holder, key, message.rank)
            if shard is None:
                continue
            size += shard.numel()
            if size > self._max_bytes:
                return (index, *found), tuple(shards)
            found.append(index)
            shards.append(pack(shard))
        return (len(message.keys), *found), tuple(shards)

    def _write(self, message: Message) -> tuple[int, ...]:
        """The indices of the keys whose shards the store has taken."""
        self._layout = message.layout
        if len(message.keys) != len(message.shards) or not all(map(len, message.shards)):
            raise WireError("not one shard for each key")
        return tuple(
            index
            for index, (key, shard) in enumerate(zip(message.keys, message.shards, strict=True))
            # The memory that it arrived in is the store's from now on.
            if self._store.write(message.holder, key, message.rank, unpack(shard))
        )


# -- on its own -----------------------------------------------------------------------------------


def main(argv: Sequence[str] | None = None) -> int:
    """Serve a store until SIGINT or SIGTERM; the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m kvconform.connectors.ascend.server",
        description=f"A KV store for engines of other processes; the token is in {TOKEN_VARIABLE}.",
    )
    parser.add_argument("address", help="tcp://127.0.0.1:PORT (PORT may be *) or ipc:///PATH")
    parser.add_argument("--store", required=True, help="its name, as the engines configure it")
    parser.add_argument("--world-size", type=int, default=1, help="ranks of each engine")
    parser.add_argument("--capacity-blocks", type=int, default=1024)
    parser.add_argument("--verify", action="store_true", help="keep a checksum of each block")
    parser.add_argument("--lease-seconds", type=float, default=RemoteStore.lease_seconds)
    parser.add_argument("--max-message-bytes", type=int, default=RemoteStore.max_message_bytes)
    parser.add_argument("--allow-remote", action="store_true", help="serve other machines too")
    options = parser.parse_args(argv)
    token = os.environ.get(TOKEN_VARIABLE)
    if not token:
        parser.error(f"{TOKEN_VARIABLE} is not set")
    logging.basicConfig(level=logging.INFO)
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    try:
        server = StoreServer(
            HostStore(options.capacity_blocks, options.world_size, options.verify),
            options.store,
            RemoteStore(
                options.address,
                token,
                allow_remote=options.allow_remote,
                lease_seconds=options.lease_seconds,
                max_message_bytes=options.max_message_bytes,
            ),
        )
    except (ValueError, AddressTakenError) as error:
        parser.error(str(error))
    print(f"serving {options.store} at {server.address}", flush=True)
    stop.wait()
    server.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
