"""A connector's transport that asks the world when its bytes may move."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvconform.faults.transport import TransportWorld


class ObedientTransport:
    """A connector's transport, with the world in between.

    Everything that is not about timing goes to ``inner``, the transport that the connector would
    have had: directory questions, and the copying itself.
    """

    def __init__(
        self, inner: Any, world: TransportWorld, engine: int, rank: int, child: int | None = None
    ) -> None:
        self.inner = inner
        self.world = world
        self.engine = engine
        self.rank = rank
        self.child = child
        self.whose = {} if child is None else {"child": child}
        self.done: list[Any] = []

    def lookup(self, keys: Sequence[bytes]) -> int | None:
        """Leading keys that can be loaded now; None when the store does not answer."""
        if not self.world.answers():
            return None
        found: int | None = self.inner.lookup(keys)
        if found and self.world.forgets():
            self.inner.store.evict(keys[:found])
            self.world.forgot(self, found)
        if found:
            self.world.damages(self, keys[found // 2])
        return found

    def pin(self, holder: str, keys: Sequence[bytes]) -> Any:
        """Keep keys until a load that is planned has ended."""
        self.world.planned(self, holder, keys)
        pinned = self.inner.pin(holder, keys)
        if pinned:
            self.world.holds(self, "keys pinned", holder)
        return pinned

    def unpin(self, holder: str) -> None:
        """The load has ended."""
        self.world.lets_go(self, "keys pinned", holder)
        self.inner.unpin(holder)

    def reserve(self, holder: str, keys: Sequence[bytes]) -> Any:
        """Ask for room for a save that is planned."""
        self.world.planned(self, holder, keys)
        granted = [] if self.world.refuses() else self.inner.reserve(holder, keys)
        if granted:
            self.world.holds(self, "room reserved", holder)
        return granted

    def commit(self, holder: str) -> None:
        """The save has ended."""
        self.world.lets_go(self, "room reserved", holder)
        self.inner.commit(holder)

    def abandon(self, holder: str) -> None:
        """The save has failed, or will not be."""
        self.world.lets_go(self, "room reserved", holder)
        self.inner.abandon(holder)

    def submit(self, transfer: Any) -> None:
        """Open a transfer; its bytes move when the world says so. An offer moves none."""
        if transfer.direction == "offer":
            self.world.offered(self, transfer)
            self.inner.submit(transfer)
        else:
            self.world.submit(self, transfer)

    def release(self, source: Any) -> None:
        """Tell another engine that its offer is not needed, if it can be reached."""
        if self.world.reaches(self, source):
            self.inner.release(source)

    def poll(self) -> list[Any]:
        """Outcomes since the last poll, each once."""
        done, self.done = self.done, []
        done += self.inner.poll()  # offers end on their own: read by others, or expired
        for outcome in done:
            self.world.closed(self, outcome)
        return done

    def wait(self, transfer_id: str) -> Any:
        """Let time pass until this transfer is done."""
        self.world.hurry(self, transfer_id)
        outcome = next((o for o in self.done if o.transfer_id == transfer_id), None)
        if outcome is None:
            raise KeyError(f"no transfer {transfer_id!r} is open or unreported")
        self.done.remove(outcome)
        self.world.closed(self, outcome)
        return outcome

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)
