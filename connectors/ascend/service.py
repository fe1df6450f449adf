"""The answering end of the wire: a thread that answers messages at an address, one at a time.

Only who knows the token is answered. Whoever has no business here gets one refusal for each
message, and one line in the log. A frame that is too large cuts the connection before it is read,
but how many frames make a message is seen when all are there: keep strangers off the address all
the same.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Callable, Sequence

import zmq

from kvconform.connectors.ascend.settings import Endpoint
from kvconform.connectors.ascend.sockets import Wakeup, check_reach, configure
from kvconform.connectors.ascend.wire import Buffer, Codec, Message, WireError

_logger = logging.getLogger(__name__)

_JOIN_SECONDS = 5.0
_PEERS_REMEMBERED = 1024


class AddressTakenError(OSError):
    """Someone serves there already."""


class Service:
    """Answers until it is closed.

    Args:
        endpoint: where, and on which terms.
        title: what is served; who means another thing is refused.
        answer: gives the answer to an acceptable message, or raises ``WireError`` to refuse it.
            Called in the thread, as ``rest`` is.
        rest: called whenever no message waits, and after ``rest_seconds`` at the latest.
        rest_seconds: see ``rest``.

    Attributes:
        address: where it answers, with the port that was chosen.

    Raises:
        ValueError: the address is none, or may be reached by other machines and must not be.
        AddressTakenError: someone serves there already.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        title: str,
        answer: Callable[[Message], Message],
        rest: Callable[[], None] = lambda: None,
        rest_seconds: float = 60.0,
    ) -> None:
        check_reach(endpoint)
        self._title = title
        self._do = answer
        self._rest = rest
        self._rest_seconds = rest_seconds
        self._codec = Codec(endpoint.token, endpoint.max_message_bytes)
        self._refused: set[tuple[bytes, str]] = set()  # peers, and why: told once
        self._closing = threading.Event()
        self._context = zmq.Context()
        self._socket = _bind(self._context, endpoint, self._codec.max_frame)
        self._wakeup = Wakeup()
        self.address = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self._thread = threading.Thread(
            target=self._run, name=f"kv-service {self.address}", daemon=True
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
                poller.poll(max(1, self._rest_seconds * 1000))
                while not self._closing.is_set() and self._serve_one():
                    pass
                self._rest()
        finally:
            self._context.destroy(linger=0)

    def _serve_one(self) -> bool:
        """Answer one message; False if there is none."""
        try:
            peer, *received = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return False
        answer = self._answer(peer.bytes, [frame.buffer for frame in received])
        try:
            encoded = self._codec.encode(answer)
        except WireError as error:
            encoded = self._codec.encode(Message("refused", answer.number))
            _logger.warning("At %s an answer could not be sent: %s", self.address, error)
        frames: list[Buffer] = [peer.bytes, *encoded]
        # A peer that has gone, or takes no more, loses its answer: its time limit ends the matter.
        with contextlib.suppress(zmq.ZMQError):
            self._socket.send_multipart(frames, zmq.NOBLOCK, copy=False)
        return True

    def _answer(self, peer: bytes, frames: Sequence[Buffer]) -> Message:
        number = 0
        try:
            message = self._codec.decode(frames)
            number = message.number
            if message.title != self._title:
                raise WireError(f"this is {self._title}, not {message.title}")
            return self._do(message)
        except WireError as error:
            self._tell_refusal(peer, str(error))
            return Message("refused", number, reason=str(error))
        except Exception:  # whatever one client sends must not end the service of the others
            _logger.exception("At %s a message could not be answered", self.address)
            return Message("refused", number, reason="an error at the other end")

    def _tell_refusal(self, peer: bytes, reason: str) -> None:
        if len(self._refused) >= _PEERS_REMEMBERED:
            self._refused.clear()
        if (peer, reason) not in self._refused:
            self._refused.add((peer, reason))
            _logger.warning("At %s peer %s is refused: %s", self.address, peer.hex(), reason)


def _bind(context: zmq.Context, endpoint: Endpoint, max_frame: int) -> zmq.Socket:
    bound = context.socket(zmq.ROUTER)
    configure(bound, endpoint, max_frame)
    try:
        if _has_server(endpoint.address):
            raise AddressTakenError(f"{endpoint.address} is served already")
        bound.bind(endpoint.address)
    except zmq.ZMQError as error:
        context.destroy(linger=0)
        if error.errno == zmq.EADDRINUSE:
            raise AddressTakenError(f"{endpoint.address} is served already") from error
        raise ValueError(f"KV cannot be served at {endpoint.address!r}: {error}") from error
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
