"""The life cycle of a request, as one table: ``(state, event) -> state``.

States are what the contract tells apart, which is more than vLLM's statuses: a request that has
ended may be kept until its blocks were sent, or until its load has come to an end. The diagram in
``docs/life-cycle.md`` is drawn from this table, a check reads it (VLL-104), and what is steered
towards a state follows it (see ``steer``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal[
    "new", "waiting", "deferred", "loading", "loaded", "running", "preempted", "kept",
    "ended loading", "gone",
]  # fmt: skip
"""``deferred``: its lookup answered None. ``loading``: an asynchronous load is owed. ``loaded``:
that load has come to an end, and the request waits to be scheduled. ``kept``: it has ended, and its
blocks are being sent. ``ended loading``: it ended while its load was owed, which it still is."""

Cause = Literal[
    "arrive", "defer", "answer", "admit", "admit load", "received", "again", "preempt", "end",
    "end kept", "sent",
]  # fmt: skip
"""``defer``: its lookup answers None, ``answer``: a number. ``admit``: without an asynchronous
load. ``again``: its load has failed, and it waits anew. ``end``: request_finished answered False,
``end kept``: True."""

Phase = Literal["-", "planned", "under way", "moved", "some ranks"]
"""How far the transfers of a request are: none is owed; planned; bytes have to move yet; they have
moved, and no rank has said so; some ranks have."""


@dataclass(frozen=True, slots=True)
class Way:
    """One way from state to state.

    Attributes:
        state: where it begins.
        event: what happens.
        to: where it ends.
        owed_by: who makes it happen.
    """

    state: State
    event: Cause
    to: State
    owed_by: Literal["client", "connector", "vLLM"]


WAYS: tuple[Way, ...] = (
    Way("new", "arrive", "waiting", "client"),
    Way("gone", "arrive", "waiting", "client"),
    Way("waiting", "defer", "deferred", "connector"),
    Way("deferred", "defer", "deferred", "connector"),
    Way("preempted", "defer", "deferred", "connector"),
    Way("deferred", "answer", "waiting", "connector"),
    Way("deferred", "answer", "preempted", "connector"),
    Way("waiting", "admit", "running", "vLLM"),
    Way("deferred", "admit", "running", "vLLM"),
    Way("preempted", "admit", "running", "vLLM"),
    Way("waiting", "admit load", "loading", "connector"),
    Way("deferred", "admit load", "loading", "connector"),
    Way("preempted", "admit load", "loading", "connector"),
    Way("loading", "received", "loaded", "connector"),
    Way("loaded", "admit", "running", "vLLM"),
    Way("loaded", "admit load", "loading", "connector"),
    Way("loaded", "again", "waiting", "vLLM"),
    Way("loaded", "again", "preempted", "vLLM"),
    Way("running", "preempt", "preempted", "vLLM"),
    Way("waiting", "end", "gone", "client"),
    Way("deferred", "end", "gone", "client"),
    Way("loaded", "end", "gone", "client"),
    Way("running", "end", "gone", "connector"),
    Way("preempted", "end", "gone", "client"),
    Way("waiting", "end kept", "kept", "connector"),
    Way("deferred", "end kept", "kept", "connector"),
    Way("loaded", "end kept", "kept", "connector"),
    Way("running", "end kept", "kept", "connector"),
    Way("preempted", "end kept", "kept", "connector"),
    Way("loading", "end", "ended loading", "client"),
    Way("loading", "end kept", "ended loading", "connector"),
    Way("ended loading", "received", "gone", "connector"),
    Way("ended loading", "sent", "gone", "connector"),
    Way("kept", "sent", "gone", "connector"),
)  # fmt: skip

STATES: tuple[State, ...] = State.__args__  # type: ignore[attr-defined]

PAIRS: tuple[tuple[State, Phase], ...] = (
    ("waiting", "-"),
    ("deferred", "-"),
    ("loading", "under way"),
    ("loading", "moved"),
    ("loading", "some ranks"),
    ("loaded", "-"),
    ("running", "-"),
    ("running", "under way"),
    ("preempted", "-"),
    ("kept", "under way"),
    ("kept", "moved"),
    ("kept", "some ranks"),
    ("ended loading", "under way"),
    ("ended loading", "moved"),
    ("ended loading", "some ranks"),
)
"""What a fault should meet: states, with how far transfers are in each."""

REACHED: frozenset[tuple[State, State]] = frozenset((way.state, way.to) for way in WAYS)
"""Pairs of a state and one that may follow it."""


def diagram() -> str:
    """The table as a state diagram, in Mermaid's language."""

    def name(state: State) -> str:
        return state.replace(" ", "_")

    lines = ["stateDiagram-v2"]
    lines += [f"    {name(way.state)} --> {name(way.to)}: {way.event}" for way in WAYS]
    return "\n".join(lines)
