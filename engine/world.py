"""The interface of what lies outside the engines. The worlds themselves live in ``faults``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kvconform.scenario.actions import Direction
from kvconform.scenario.shape import Shape

if TYPE_CHECKING:
    from kvconform.engine.cluster import Cluster


class World:
    """A world in which nothing is simulated: the target talks to the real thing.

    Orders return whether they had any effect; here none has. A world whose transfers obey orders
    overrides them.
    """

    offers: frozenset[str] = frozenset()
    """Orders that this world can carry out: ``hold``, ``release``, ``busy``, ``fail``."""

    def begin(self, cluster: Cluster) -> None:
        """A run begins; called before any connector is built."""

    def options(self, shape: Shape) -> Mapping[str, Any]:
        """What targets find under ``{placeholders}`` in their extra config."""
        return {"store_blocks": shape.store_blocks}

    def hold(self, direction: Direction, rank: int | None) -> bool:
        """Keep transfers open from now on."""
        return False

    def release(self, selector: int | None) -> str | None:
        """Complete the k-th most recently opened transfer, or all; says which."""
        return None

    def busy(self, lookups: int) -> bool:
        """Leave the next lookups unanswered."""
        return False

    def fail(self, loads: int, blocks: str, rank: int | None) -> bool:
        """Fail the next loads."""
        return False

    def calm(self) -> None:
        """Faults off: everything held is released, nothing is withheld any more."""

    def open_transfers(self) -> int:
        """Transfers whose bytes have not moved yet."""
        return 0

    def end(self) -> None:
        """The run is over; let go of everything."""
