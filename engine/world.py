"""The interface of what lies outside the engines. The worlds themselves live in ``faults``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvconform.engine import threads
from kvconform.scenario.actions import Direction
from kvconform.scenario.shape import Shape

if TYPE_CHECKING:
    from kvconform.engine.cluster import Cluster


class Pending:
    """Something that is on its way, and gets there when the world says so."""

    name: str
    """How messages call it."""

    request: str
    """Whose it is."""

    def arrive(self) -> None:
        """It gets there."""
        raise NotImplementedError


@dataclass(slots=True, eq=False)
class Handover(Pending):
    """A request on its way from the engine that prefilled to the one that decodes.

    Attributes:
        request: the prefill's name.
        params: the ``kv_transfer_params`` of its output.
    """

    cluster: Cluster
    request: str
    params: Mapping[str, Any] | None

    @property
    def name(self) -> str:  # type: ignore[override]
        """How messages call it."""
        return f"{self.request} to its decoder"

    def arrive(self) -> None:
        """The decode request arrives."""
        self.cluster.forward(self.request, self.params)


class World:
    """A world in which only the router obeys: the target talks to the real thing.

    Orders return whether they had any effect. A world whose transfers obey orders overrides them.
    """

    offers: frozenset[str] = frozenset({"route", "restart"})
    """Orders that this world can carry out."""

    crashes = False
    """Whether an engine may die here without a word: then all that it dealt with is simulated."""

    remembers = False
    """Whether what it has stored outlives an engine for certain."""

    runs_threads = False
    """Whether the target's threads work only when this world lets them, in ``settle``."""

    def __init__(self) -> None:
        self.pending: list[Pending] = []
        """What is held, in the order in which it was opened."""
        self._routes_held = False
        self._routed: list[Handover] = []

    def begin(self, cluster: Cluster) -> None:
        """A run begins; called before any connector is built."""

    def options(self, shape: Shape) -> Mapping[str, Any]:
        """What targets find under ``{placeholders}`` in their extra config."""
        return {"store_blocks": shape.store_blocks, "tp": shape.tp}

    def route(self, handover: Handover) -> None:
        """A prefill is done; its request goes on to where it decodes, unless routes are held."""
        self._routed.append(handover)
        if self._routes_held:
            self.pending.append(handover)
        else:
            handover.arrive()

    def hold(self, direction: Direction, rank: int | None) -> bool:
        """Keep transfers, or requests between engines, on their way from now on."""
        if direction not in ("route", "any"):
            return False
        self._routes_held = True
        return True

    def release(self, selector: int | None) -> str | None:
        """What was opened k-th most recently gets there, or all does; says which."""
        if selector is None:
            had = bool(self.pending) or self.unhold()
            while self.pending:
                self.pending.pop(0).arrive()
            return "everything" if had else None
        if not self.pending:
            return None
        chosen = self.pending.pop(-1 - selector % len(self.pending))
        chosen.arrive()
        return chosen.name

    def unhold(self) -> bool:
        """Nothing is held any more from now on; whether anything was."""
        had, self._routes_held = self._routes_held, False
        return had

    def lose(self, selector: int) -> Handover | None:
        """The k-th most recent request between engines never gets there; which one."""
        under_way = [p for p in self.pending if isinstance(p, Handover)]
        if not under_way:
            return None
        chosen = under_way[-1 - selector % len(under_way)]
        self.pending.remove(chosen)
        self._routed.remove(chosen)
        return chosen

    def repeat(self, selector: int) -> Handover | None:
        """The k-th most recent request between engines is sent again; which one."""
        if not self._routed:
            return None
        again = self._routed[-1 - selector % len(self._routed)]
        again.arrive()
        return again

    def opened(self, selector: int) -> Pending | None:
        """The transfer that was opened k-th most recently, and whose bytes have to move yet."""
        return None

    def drop(self, transfer: Pending) -> None:
        """A transfer is lost on its way."""

    def refuse(self, saves: int) -> bool:
        """Have no room for the next saves."""
        return False

    def forget(self, lookups: int) -> bool:
        """Forget what the next lookups find, once they have found it."""
        return False

    def cut(self, engine: int, back: bool) -> bool:
        """An engine can be reached no more, or again."""
        return False

    def busy(self, lookups: int) -> bool:
        """Leave the next lookups unanswered."""
        return False

    def fail(self, transfers: int, blocks: str, rank: int | None, direction: str = "load") -> bool:
        """Fail the next loads or saves."""
        return False

    def corrupt(self, lookups: int, rank: int | None) -> bool:
        """Damage some of what the next lookups find, once they have found it."""
        return False

    def died(self, engine: int) -> int:
        """An engine is no more; how much is kept in the store for nobody now."""
        return 0

    def passes(self, seconds: float) -> None:
        """So much time has passed."""

    def calm(self) -> None:
        """Faults off: everything held is released, nothing is withheld any more."""
        self.unhold()
        self.release(None)

    def settle(self) -> None:
        """A step is over: the target's threads get time until they do nothing."""
        threads.settle()

    def kept(self) -> list[tuple[int, str, int | None]]:
        """What engines still keep outside (engine, what, child of a composition) in the end."""
        return []

    def open_transfers(self) -> int:
        """Transfers whose bytes have not moved yet."""
        return 0

    def end(self) -> None:
        """The run is over; let go of everything."""
        self.pending.clear()
        self._routed.clear()
