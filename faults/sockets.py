"""ZeroMQ within this process: its own sockets over its own ``inproc`` transport instead of TCP.

Addresses are names of the run, so no port is taken and runs cannot meet. What differs from TCP:

* a message from or to an engine that is cut off is lost, as behind a link that is down: it can be
  sent, and the answer never comes;
* who polls for an answer that is not on its way has waited the whole time-out at once.

:data:`module` stands for the module ``zmq`` in the target's module.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import zmq


class Network:
    """The messages of one run.

    Args:
        delivers: whether a message from the thread that asks gets to who listens.
    """

    def __init__(self, delivers: Callable[[], bool]) -> None:
        self.context = _Real(io_threads=0)
        self.ended = False
        self.delivers = delivers
        self._listened: list[str] = []

    def bound(self, address: str) -> None:
        """Someone listens here."""
        self._listened.append(address)

    def end(self) -> None:
        """Wake who listens, so that it ends."""
        self.ended = True
        for address in self._listened:
            bell = self.context.socket(zmq.DEALER)
            zmq.Socket.connect(bell, address)
            zmq.Socket.send(bell, b"", zmq.NOBLOCK)

    def close(self) -> None:
        """Close all sockets; nobody may be using them any more."""
        self.context.destroy(linger=0)


current: Network | None = None
"""The network of the run that is going on."""


class Socket(zmq.Socket[bytes]):
    """A socket of the target's."""

    network: Any = None
    asked = False
    """Whether an answer is on its way."""
    lost = False
    """Whether its question was lost: ZeroMQ lets nobody ask again before there is an answer."""

    def bind(self, addr: str) -> Any:
        """Listen at an address."""
        self.network.bound(_name(addr))
        return super().bind(_name(addr))

    def connect(self, addr: str) -> Any:
        """Talk to who listens there, now or later."""
        return super().connect(_name(addr))

    def send(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        """Send a message, which may get lost."""
        if self.type != zmq.REQ:
            return super().send(data, *args, **kwargs)
        if self.lost:
            raise zmq.ZMQError(zmq.EFSM)
        if not self.network.delivers():
            self.lost = True
            return None
        sent = super().send(data, *args, **kwargs)
        self.asked = True
        return sent

    def recv(self, *args: Any, **kwargs: Any) -> Any:
        """The next message; none comes in time when the question was lost."""
        if self.lost:
            raise zmq.Again
        got = super().recv(*args, **kwargs)
        self.asked = False
        if self.network.ended and self.type == zmq.ROUTER:
            raise SystemExit
        return got

    def poll(self, timeout: int | None = None, flags: int = zmq.POLLIN) -> int:
        """Whether a message is there, or comes in time (milliseconds)."""
        return super().poll(timeout if self.asked else 0, flags)


class _Real(zmq.Context[Socket]):
    """The context that all sockets of a run share."""

    _socket_class = Socket


class Context:
    """A context of the target's."""

    def __init__(self, io_threads: int = 1) -> None:
        if current is None:
            raise RuntimeError("kvconform's sockets work only within a run of kvconform")
        self._network = current
        self._sockets: list[Socket] = []

    def socket(self, socket_type: int) -> Socket:
        """A new socket."""
        made = self._network.context.socket(socket_type)
        made.network = self._network
        self._sockets.append(made)
        return made

    def destroy(self, linger: int | None = None) -> None:
        """Close its sockets."""
        for made in self._sockets:
            made.close(linger)


class Poller(zmq.Poller):
    """Polls sockets of the target's."""

    def poll(self, timeout: float | None = None) -> Any:
        """Those of its sockets that have a message, or get one in time (milliseconds)."""
        asked = any(getattr(made, "asked", False) for made, _ in self.sockets)
        return super().poll(timeout if asked else 0)


class _Module:
    """Stands for the module ``zmq``."""

    Context = Context
    Poller = Poller

    def __getattr__(self, name: str) -> Any:
        return getattr(zmq, name)


module = _Module()


def _name(address: str) -> str:
    """The name, within this process, of a TCP address."""
    return "inproc://" + address.removeprefix("tcp://")
