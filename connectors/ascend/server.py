"""The process that has the store: answers the clients of ``remote``, one message at a time.

Started by an engine (``serve`` in the settings), in a thread of its scheduler's process, or on its
own, which outlives every engine::

    ASCEND_STORE_TOKEN=… python -m kvconform.connectors.ascend.server tcp://127.0.0.1:7777 \\
        --store my-model --world-size 2 --capacity-blocks 4096

Only who knows the token is served, and a client that is not heard for the length of the lease loses
its pins and reservations. Whoever has no business here gets one refusal for each message, and one
line in the log. A frame that is too large cuts the connection before it is read, but how many
frames make a message is seen when all are there: keep strangers off the address all the same.
"""

from __future__ import annotations

import argparse
import contextlib
import ipaddress
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from urllib.parse import urlsplit

import torch
import zmq

from kvconform.connectors.ascend.leases import Leases
from kvconform.connectors.ascend.settings import RemoteStore
from kvconform.connectors.ascend.sockets import Wakeup, configure
from kvconform.connectors.ascend.store import HostStore
from kvconform.connectors.ascend.wire import Buffer, Codec, Message, WireError, store_title

_logger = logging.getLogger(__name__)

TOKEN_VARIABLE = "ASCEND_STORE_TOKEN"
"""Where a server on its own finds the token: a command line can be read by all users."""

_JOIN_SECONDS = 5.0
_PEERS_REMEMBERED = 1024


class AddressTakenError(OSError):
    """Someone serves there already."""


class StoreServer:
    """A thread that serves a store until it is closed.

    Args:
        store: what is served; shards in it are packed, so it is of use to clients only.
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
        _check_reach(remote)
        self._store = store
        self._title = store_title(name, store.world_size)
        self._codec = Codec(remote.token, remote.max_message_bytes)
        self._leases = Leases(store, remote.lease_seconds)
        self._clock = clock
        self._refused: set[tuple[bytes, str]] = set()  # peers, and why: told once
        self._closing = threading.Event()
        self._context = zmq.Context()
        self._socket = _bind(self._context, remote, self._codec.max_frame)
        self._wakeup = Wakeup()
        self.address = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self._thread = threading.Thread(
            target=self._run, name=f"kv-store {self.address}", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop serving. Calling it again does nothing."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._wakeup.set()
        self._thread.join(_JOIN_SECONDS)
        if not self._thread.is_alive():
            self._wakeup.close()

    # -- in the thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._wakeup, zmq.POLLIN)
        try:
            while not self._closing.is_set():
                poller.poll(max(1, self._leases.seconds * 250))
                while not self._closing.is_set() and self._serve_one():
                    pass
                # Only now: a sign of life may have waited among the messages.
                for client in self._leases.expire(self._clock()):
                    _logger.info("Client %s of the KV store is gone", client)
        finally:
            self._context.destroy(linger=0)

    def _serve_one(self) -> bool:
        """Answer one message; False if there is none."""
        try:
            peer, *received = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return False
        answer = self._answer(peer.bytes, [frame.buffer for frame in received])
        frames: list[Buffer] = [peer.bytes, *self._codec.encode(answer)]
        # A peer that has gone, or takes no more, loses its answer: its time limit ends the matter.
        with contextlib.suppress(zmq.ZMQError):
            self._socket.send_multipart(frames, zmq.NOBLOCK)
        return True

    def _answer(self, peer: bytes, frames: Sequence[Buffer]) -> Message:
        number = 0
        try:
            message = self._codec.decode(frames)
            number = message.number
            if message.store != self._title:
                raise WireError(f"this is the store {self._title}, not {message.store}")
            if message.rank >= self._store.world_size:
                raise WireError(f"no rank {message.rank} here")
            self._leases.hear(message.sender, self._clock())
            return self._do(message)
        except WireError as error:
            self._tell_refusal(peer, str(error))
            return Message("refused", number, reason=str(error))
        except Exception:  # whatever one client sends must not end the service of the others
            _logger.exception("The KV store could not answer a message")
            return Message("refused", number, reason="an error in the store")

    def _tell_refusal(self, peer: bytes, reason: str) -> None:
        if len(self._refused) >= _PEERS_REMEMBERED:
            self._refused.clear()
        if (peer, reason) not in self._refused:
            self._refused.add((peer, reason))
            _logger.warning("The KV store refuses peer %s: %s", peer.hex(), reason)

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
            (packed,) = shard
            size += packed.numel()
            if size > self._codec.max_bytes:
                return (index, *found), tuple(shards)
            found.append(index)
            shards.append(memoryview(packed.numpy()))
        return (len(message.keys), *found), tuple(shards)

    def _write(self, message: Message) -> tuple[int, ...]:
        """The indices of the keys whose shards the store has taken."""
        if len(message.keys) != len(message.shards) or not all(map(len, message.shards)):
            raise WireError("not one shard for each key")
        return tuple(
            index
            for index, (key, shard) in enumerate(zip(message.keys, message.shards, strict=True))
            # The memory that it arrived in is the store's from now on.
            if self._store.write(
                message.holder, key, message.rank, (torch.frombuffer(shard, dtype=torch.uint8),)
            )
        )


# -- addresses ------------------------------------------------------------------------------------


def _check_reach(remote: RemoteStore) -> None:
    """Refuse to be reached by other machines unless that is wanted."""
    parts = urlsplit(remote.address)
    if parts.scheme == "ipc" or remote.allow_remote:
        return
    if parts.scheme != "tcp":
        raise ValueError(f"The KV store is served over tcp:// or ipc://, not {remote.address!r}")
    host = parts.hostname or ""
    with contextlib.suppress(ValueError):
        if host == "localhost" or ipaddress.ip_address(host).is_loopback:
            return
    raise ValueError(
        f"{remote.address!r} may be reached by other machines: the KV store is served there only "
        "with allow_remote"
    )


def _bind(context: zmq.Context, remote: RemoteStore, max_frame: int) -> zmq.Socket:
    bound = context.socket(zmq.ROUTER)
    configure(bound, remote, max_frame)
    try:
        if _has_server(remote.address):
            raise AddressTakenError(f"{remote.address} is served already")
        bound.bind(remote.address)
    except zmq.ZMQError as error:
        context.destroy(linger=0)
        if error.errno == zmq.EADDRINUSE:
            raise AddressTakenError(f"{remote.address} is served already") from error
        raise ValueError(f"The KV store cannot be served at {remote.address!r}: {error}") from error
    except AddressTakenError:
        context.destroy(linger=0)
        raise
    return bound


def _has_server(address: str) -> bool:
    """Whether this is an ``ipc`` address at which someone listens: ZeroMQ would take it over."""
    path = address.removeprefix("ipc://")
    if path == address or path.startswith("@"):
        return False
    with socket.socket(socket.AF_UNIX) as caller:
        return caller.connect_ex(path) == 0


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
            HostStore(options.capacity_blocks, options.world_size),
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
