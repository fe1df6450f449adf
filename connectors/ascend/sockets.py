"""What both ends of the wire do alike with sockets, each of which belongs to one thread alone."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from urllib.parse import urlsplit

import zmq

from kvconform.connectors.ascend.settings import Endpoint


def check_reach(endpoint: Endpoint) -> None:
    """Refuse to deal with other machines unless that is wanted.

    Raises:
        ValueError: the address is none, or may be on other machines' way and must not be.
    """
    parts = urlsplit(endpoint.address)
    if parts.scheme == "ipc" or endpoint.allow_remote:
        return
    if parts.scheme != "tcp":
        raise ValueError(f"KV is served over tcp:// or ipc://, not {endpoint.address!r}")
    host = parts.hostname or ""
    with contextlib.suppress(ValueError):
        if host == "localhost" or ipaddress.ip_address(host).is_loopback:
            return
    raise ValueError(
        f"{endpoint.address!r} may be reached by other machines: KV is served there only with "
        "allow_remote"
    )


def configure(end: zmq.Socket, endpoint: Endpoint, max_frame: int) -> None:
    """Options of either end.

    Args:
        end: not connected or bound yet.
        endpoint: where to.
        max_frame: a connection that brings a larger frame is cut, in bytes.
    """
    end.linger = 0
    end.maxmsgsize = max_frame
    end.ipv6 = "[" in endpoint.address
    # TCP alone does not notice that the other machine has gone.
    lease_ms = max(1, int(endpoint.lease_seconds * 1000))
    end.heartbeat_ivl = max(1, lease_ms // 3)
    end.heartbeat_timeout = lease_ms


class Wakeup:
    """Wakes a thread that polls: it is readable after ``set``, until ``clear``."""

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)

    def fileno(self) -> int:
        """What to poll."""
        return self._reader.fileno()

    def set(self) -> None:
        """From any thread."""
        # Full of calls that have not been seen: they wake as well.
        with contextlib.suppress(BlockingIOError):
            self._writer.send(b"\0")

    def clear(self) -> None:
        """From the thread that polls."""
        with contextlib.suppress(BlockingIOError):
            while self._reader.recv(4096):
                pass

    def close(self) -> None:
        """Once nobody polls it."""
        self._reader.close()
        self._writer.close()
