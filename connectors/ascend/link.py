"""A client's end of the wire: one connection to a ``service``, in a thread of its own.

Requests are sent in the order in which they were asked, and each gets an answer, or a ``GoneError``
as soon as it is clear that there will be none: no answer in time, a broken connection, a refusal.
What cannot be said now is never said later: a reservation that arrives when its planner has given
it up would stay for ever. Only *patient* requests, which do no harm late, wait for the first sign
of life from the other end. The thread connects again by itself, and tells the other end at short
intervals that the client lives and what it holds (see ``leases``), which mends what was lost.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
import uuid
from collections import deque
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from typing import Any

import zmq
from zmq.utils.monitor import recv_monitor_message

from kvconform.connectors.ascend.settings import Endpoint
from kvconform.connectors.ascend.sockets import Wakeup, configure
from kvconform.connectors.ascend.transfers import GoneError
from kvconform.connectors.ascend.wire import Codec, Message, WireError

_logger = logging.getLogger(__name__)

_TAKES = frozenset({"pin", "reserve"})
_GIVES_BACK = frozenset({"unpin", "commit", "abandon"})
_FAREWELL_SECONDS = 1.0
_JOIN_SECONDS = 5.0
_RECONNECT_MS = 100


@dataclass(eq=False)
class _Request:
    op: str
    deadline: float
    fields: dict[str, Any]
    patient: bool = False
    answered: Future[Message] = field(default_factory=Future)


class Link:
    """Asks a store, or an engine that offers, and keeps alive what it holds there.

    Args:
        endpoint: where it answers.
        title: what the client takes it for, see ``wire.store_title``.

    Attributes:
        reachable: set while it answers; while it does not, every request fails at once, but for
            patient ones.

    Raises:
        ValueError: the address is none.
    """

    def __init__(self, endpoint: Endpoint, title: str) -> None:
        self.reachable = threading.Event()
        self._endpoint = endpoint
        self._title = title
        self._codec = Codec(endpoint.token, endpoint.max_message_bytes)
        self._sender = uuid.uuid4().hex
        self._lock = threading.Lock()
        self._closed = False
        self._outbox: deque[_Request] = deque()
        # All else belongs to the thread.
        self._numbers = itertools.count(1)
        self._waiting: list[_Request] = []  # patiently
        self._pending: dict[int, _Request] = {}
        self._holders: set[str] = set()
        self._connected = False
        self._complaint = ""  # the last one, to be told once
        self._heard = 0.0
        self._next_beat = 0.0
        self._lease = endpoint.lease_seconds  # until the other end tells its own
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        configure(self._socket, endpoint, self._codec.max_frame)
        self._socket.sndhwm = 0  # requests are few, and never to be sent in part
        self._socket.immediate = True  # nothing is kept for one that is away
        self._socket.reconnect_ivl = _RECONNECT_MS
        self._monitor = self._socket.get_monitor_socket(
            zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED
        )
        try:
            self._socket.connect(endpoint.address)
        except zmq.ZMQError as error:
            self._context.destroy(linger=0)
            raise ValueError(f"{endpoint.address!r} cannot be reached: {error}") from error
        self._wakeup = Wakeup()
        self._thread = threading.Thread(
            target=self._run, name=f"kv-link {endpoint.address}", daemon=True
        )
        self._thread.start()

    def ask(
        self, op: str, seconds: float, *, patient: bool = False, **fields: Any
    ) -> Future[Message]:
        """Send a request; its answer, or ``GoneError``, within about ``seconds``.

        Args:
            op: what is asked for.
            seconds: how long the answer is of use.
            patient: wait for the other end's first sign of life; for what does no harm late.
            fields: more of the ``Message``.
        """
        request = _Request(op, time.monotonic() + seconds, fields, patient)
        with self._lock:
            closed = self._closed
            if not closed:
                self._outbox.append(request)
        if closed:
            request.answered.set_exception(GoneError("the connection has been closed"))
        else:
            self._wakeup.set()
        return request.answered

    def ask_until(self, deadline: float, op: str, **fields: Any) -> Message:
        """Send a request and wait for its answer, on the monotonic clock; see ``ask``.

        Raises:
            GoneError: there is none in time.
        """
        seconds = deadline - time.monotonic()
        if seconds <= 0:
            raise GoneError("out of time")
        try:
            return self.ask(op, seconds, **fields).result(seconds)
        except TimeoutError:
            raise GoneError("no answer in time") from None

    def close(self) -> None:
        """Give back all that is held, if anyone can be told, and end the thread.

        Calling it again does nothing.
        """
        wait([self.ask("bye", _FAREWELL_SECONDS)], _FAREWELL_SECONDS)
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._wakeup.set()
        self._thread.join(_JOIN_SECONDS)
        if not self._thread.is_alive():
            self._wakeup.close()

    # -- in the thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        poller = zmq.Poller()
        for readable in (self._socket, self._monitor, self._wakeup):
            poller.register(readable, zmq.POLLIN)
        try:
            while not self._closed:
                poller.poll(self._patience_ms())
                self._wakeup.clear()
                self._watch()
                self._receive()
                self._beat()
                self._send()
                self._expire()
        finally:
            self.reachable.clear()
            with self._lock:
                self._closed = True
            self._give_up("the connection has been closed")
            self._send()
            self._context.destroy(linger=0)

    def _patience_ms(self) -> float:
        """How long nothing is to be done unless something happens."""
        times = [request.deadline for request in (*self._pending.values(), *self._waiting)]
        times.append(self._next_beat if self._connected else time.monotonic() + self._lease)
        return max(1.0, (min(times) - time.monotonic()) * 1000)

    def _watch(self) -> None:
        """What became of the connection."""
        while self._monitor.poll(0):
            self._connected = (
                recv_monitor_message(self._monitor)["event"] == zmq.EVENT_HANDSHAKE_SUCCEEDED
            )
            if self._connected:
                self._heard = time.monotonic()
                self._next_beat = 0.0
            else:
                self._lose("the connection broke")

    def _receive(self) -> None:
        while True:
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            try:
                answer = self._codec.decode([frame.buffer for frame in frames])
            except WireError as error:
                self._lose(f"it answers with {error}")
                continue
            request = self._pending.pop(answer.number, None)
            if answer.op != "ok":
                self._refuse(request, answer.reason)
                continue
            self._heard = time.monotonic()
            self._complaint = ""
            self.reachable.set()
            if request is not None:  # else it comes too late
                if request.op == "beat":
                    self._lease = answer.answer[0] / 1000
                request.answered.set_result(answer)

    def _refuse(self, request: _Request | None, reason: str) -> None:
        if request is None or request.op == "beat":
            self._lose(f"it refuses: {reason}")
        if request is not None:
            request.answered.set_exception(GoneError(f"refused: {reason}"))

    def _beat(self) -> None:
        now = time.monotonic()
        if self._connected and now >= self._next_beat:
            self._next_beat = now + self._lease / 3
            beat = _Request("beat", now + self._lease, {"holders": tuple(self._holders)})
            self._send_one(beat)

    def _send(self) -> None:
        """Send what has been asked meanwhile, or say that it is no use."""
        if self.reachable.is_set():
            self._outbox.extendleft(reversed(self._waiting))
            self._waiting.clear()
        while self._outbox:
            request = self._outbox.popleft()
            if self.reachable.is_set():
                self._send_one(request)
            elif request.patient and not self._closed:
                self._waiting.append(request)
                self._next_beat = 0.0  # is it there? The answer frees the request, or ends it
            else:
                request.answered.set_exception(GoneError("out of reach"))
            # Only now: the next beat tells what is held after all that was sent before it.
            if request.op in _TAKES:
                self._holders.add(request.fields["holder"])
            elif request.op in _GIVES_BACK:
                self._holders.discard(request.fields["holder"])

    def _send_one(self, request: _Request) -> None:
        number = next(self._numbers)
        message = Message(
            request.op, number, sender=self._sender, title=self._title, **request.fields
        )
        try:
            # Not copied: nobody writes to a shard once it has been made.
            self._socket.send_multipart(self._codec.encode(message), zmq.NOBLOCK, copy=False)
        except (WireError, zmq.ZMQError) as error:
            request.answered.set_exception(GoneError(str(error)))
            if request.op == "beat":
                self._lose(str(error))
        else:
            self._pending[number] = request

    def _expire(self) -> None:
        now = time.monotonic()
        for number, request in list(self._pending.items()):
            if request.deadline <= now:
                del self._pending[number]
                request.answered.set_exception(GoneError("no answer in time"))
        for request in [one for one in self._waiting if one.deadline <= now]:
            self._waiting.remove(request)
            request.answered.set_exception(GoneError("out of reach"))
        if self.reachable.is_set() and now - self._heard > self._lease:
            self._lose("it does not answer")

    def _lose(self, reason: str) -> None:
        """The other end is out of reach until it answers again."""
        self.reachable.clear()
        if reason != self._complaint:
            self._complaint = reason
            _logger.warning("%s: %s is gone: %s", self._endpoint.address, self._title, reason)
        self._give_up(reason)

    def _give_up(self, reason: str) -> None:
        """Nothing that was asked will be answered."""
        for request in (*self._pending.values(), *self._waiting):
            request.answered.set_exception(GoneError(reason))
        self._pending.clear()
        self._waiting.clear()
