"""Which client holds what in a store that other processes use, and until when.

A store keeps what is pinned or reserved until its holder gives it back. A client that died gives
nothing back, and what it said may be lost with a connection. So each client says, from time to
time, what it holds: all else that it took is given back then, and everything when it has not been
heard for too long.
"""

from __future__ import annotations

from collections.abc import Collection

from kvconform.connectors.ascend.store import HostStore


class Leases:
    """Holders by client; the client is the one that plans, as jobs are carried out by others.

    Not thread-safe.

    Args:
        store: what is held.
        seconds: silence after which a client is taken for dead.
    """

    def __init__(self, store: HostStore, seconds: float) -> None:
        self.seconds = seconds
        self._store = store
        self._heard: dict[str, float] = {}  # by client
        self._client_of: dict[str, str] = {}  # by holder

    def hear(self, client: str, now: float) -> None:
        """The client lives."""
        self._heard[client] = now

    def take(self, client: str, holder: str) -> None:
        """The holder is about to take something.

        One of another client has come back to life under an old name: what was taken then is given
        back first, for nobody else will.
        """
        if self._client_of.get(holder, client) != client:
            self.give_back(holder)
        self._client_of[holder] = client

    def forget(self, holder: str) -> None:
        """The holder has nothing any more."""
        self._client_of.pop(holder, None)

    def give_back(self, holder: str) -> None:
        """Whatever the holder has."""
        self._store.unpin(holder)
        self._store.abandon(holder)
        self.forget(holder)

    def keep(self, client: str, holders: Collection[str]) -> None:
        """Of what the client took, only these still hold it."""
        kept = frozenset(holders)
        for holder in [h for h, c in self._client_of.items() if c == client and h not in kept]:
            self.give_back(holder)

    def end(self, client: str) -> None:
        """The client is gone, and so is all that it held."""
        self.keep(client, ())
        self._heard.pop(client, None)

    def expire(self, now: float) -> list[str]:
        """End the clients that have not been heard for too long; which they were."""
        dead = [client for client, heard in self._heard.items() if now - heard > self.seconds]
        for client in dead:
            self.end(client)
        return dead
