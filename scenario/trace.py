"""Events: what was observed in a run, in order. Every check and report is derived from them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Kind(StrEnum):
    """What an event tells. Beside each: the keys of its ``data``."""

    ACTION = "action"  # index, action (JSON), resolved (text), effect (bool)
    HOOK = "hook"  # half, name, plus what the hook's recorder keeps of arguments and answer
    RAISED = "raised"  # half, name, error, where, line: an exception escaped a hook
    ANSWERED = "answered"  # half, name, expected, answer: an answer that vLLM cannot work with
    ADMITTED = "admitted"  # local, external, is_async, blocks: blocks were allocated for a request
    GIVEN = "given"  # blocks, to: blocks of a request that has ended and is kept went to another
    STATUS = "status"  # old, new
    SCHEDULED = "scheduled"  # tokens {request: n}, free (blocks), finished, preempted
    COMMON = "common"  # said, common (blocks per KV group), requests: what a batch has in common
    RAN = "ran"  # recving, sending, invalid, failed: what one rank reported in one step
    OUTPUT = "output"  # recving, sending, invalid, failed: after aggregation, before vLLM sees it
    TOKENS = "tokens"  # tokens, finish: delivered to the client
    CHILD = "child"  # child, as, ...: what one child of a composition would see, were it alone
    WRONG_KV = "wrong_kv"  # position, block, slot, layer, found, blame, ...: attention read it
    PLANNED = "planned"  # blocks: promised blocks of a request that the step's metadata speaks of
    OPENED = "opened"  # transfer, direction, blocks, planned: bytes are about to move
    MOVED = "moved"  # transfer, direction, blocks, planned, stale, failed, source, ...: bytes moved
    CLOSED = "closed"  # transfer, direction: the connector was told
    DEVICE = "device"  # waited (copies that did not run at once), misuses [wrong, text]
    WIRE = "wire"  # problem, detail: metadata did not survive the way to the workers unchanged
    OBSERVED = "observed"  # what, half, ...: statistics, events, metadata of workers; see observe
    BROKE = "broke"  # error, where, line, source: vLLM raised outside any hook
    RESET = "reset"  # running, connector, ok
    FORGOT = "forgot"  # blocks: how many the store has lost that a lookup had just found
    CORRUPTED = "corrupted"  # a block of what a lookup has just found was damaged in the store
    RESTARTED = "restarted"  # lost, clean, remembers, orphans: an engine has started anew
    REDEPLOYED = "redeployed"  # model, block_size, tp: all have, and serve this from now on
    REFUSED = "refused"  # error, detail: the target does not serve what it was redeployed for
    STAYED_DOWN = "stayed_down"  # error, detail: it did not start again as it had been before
    FORWARDED = "forwarded"  # after, params: a prefilled request goes on to its decoder
    IDLE = "idle"  # held: nothing happens any more by itself; from now on time passes
    DRAIN = "drain"  # pending: the drain begins
    RESTED = (
        "rested"  # held: vLLM's own loop would take no step, and keeps blocks of these requests
    )
    LEFT = "left"  # what, detail, status, restless, foreign_clock: left over after the drain
    QUIET = "quiet"  # the drain ended and nothing is left over
    LOG = "log"  # level, logger, message


@dataclass(slots=True)
class Event:
    """One observation.

    Attributes:
        kind: what it tells.
        engine: index of the engine, -1 for the world.
        step: that engine's step number, from 1; 0 before the first.
        request: the request concerned, if one is.
        rank: the worker rank concerned, if one is.
        data: see :class:`Kind`.
    """

    kind: Kind
    engine: int
    step: int
    request: str | None = None
    rank: int | None = None
    data: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """JSON data."""
        out: dict[str, Any] = {"kind": str(self.kind), "engine": self.engine, "step": self.step}
        if self.request is not None:
            out["request"] = self.request
        if self.rank is not None:
            out["rank"] = self.rank
        return out | {k: _plain(v) for k, v in self.data.items()}

    @staticmethod
    def from_json(data: dict[str, Any]) -> Event:
        """An event from JSON data; sets come back as lists."""
        fixed = ("kind", "engine", "step", "request", "rank")
        rest = {k: v for k, v in data.items() if k not in fixed}
        return Event(
            Kind(data["kind"]),
            data["engine"],
            data["step"],
            data.get("request"),
            data.get("rank"),
            rest,
        )


def _plain(value: Any) -> Any:
    if isinstance(value, set | frozenset):
        try:
            return sorted(value)
        except TypeError:
            return sorted(map(repr, value))
    if isinstance(value, tuple | list):
        return [_plain(v) for v in value]
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return repr(value)  # a hook may answer anything


Listener = Callable[[Event], None]


class Trace:
    """The events of one run in order; listeners hear each as it happens."""

    __slots__ = ("_listeners", "events")

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._listeners: list[Listener] = []

    def listen(self, listener: Listener) -> None:
        """Call ``listener`` with every event from now on."""
        self._listeners.append(listener)

    def emit(self, event: Event) -> None:
        """Record ``event`` and tell the listeners."""
        self.events.append(event)
        for listener in self._listeners:
            listener(event)

    def of(self, *kinds: Kind) -> Iterator[Event]:
        """The events of these kinds, in order."""
        return (e for e in self.events if e.kind in kinds)

    def tell(self, event: Event, child: int | None) -> None:
        """Emit ``event``, or that a child of a composition would be told it."""
        if child is not None:
            data = {"child": child, "as": str(event.kind), **event.data}
            event = Event(Kind.CHILD, event.engine, event.step, event.request, event.rank, data)
        self.emit(event)

    def __len__(self) -> int:
        return len(self.events)
