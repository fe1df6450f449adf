"""The life cycle of a request, as one table: ``(state, event) -> state``.

States are what the contract tells apart, which is more than vLLM's statuses: a request that has
ended may be kept until its blocks were sent, or until its load has come to an end. The diagram in
``docs/life-cycle.md`` is drawn from this table, a check reads it (VLL-104), and what is steered
towards a state follows it (see ``steer``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

State = Literal[
    "new", "waiting", "deferred", "matched", "loading", "loaded", "running", "preempted", "kept",
    "ended loading", "gone",
]  # fmt: skip

STATES: Mapping[State, str] = {
    "new": "its client has not sent it",
    "waiting": "it waits to be scheduled",
    "deferred": "its lookup has answered None; it is looked up again",
    "matched": "its lookup has promised tokens; there may be no room for it",
    "loading": "an asynchronous load is owed to it",
    "loaded": "that load has come to an end, and it waits to be scheduled",
    "running": "it is scheduled",
    "preempted": "its blocks were taken, and it waits anew",
    "kept": "it has ended, and its blocks are kept until they have been sent",
    "ended loading": "it ended while its load was owed, which it still is",
    "gone": "vLLM has forgotten it, or is about to",
}

Cause = Literal[
    "arrive", "defer", "answer", "match", "admit", "admit load", "received", "again", "preempt",
    "end", "end kept", "sent",
]  # fmt: skip

CAUSES: Mapping[Cause, str] = {
    "arrive": "its client sends it",
    "defer": "its lookup answers None",
    "answer": "its lookup answers that there is nothing to load",
    "match": "its lookup promises tokens",
    "admit": "it gets blocks, and no asynchronous load",
    "admit load": "it gets blocks, and an asynchronous load is promised",
    "received": "every rank has named it in finished_recving",
    "again": "its load has failed, and it waits anew",
    "preempt": "its blocks are taken",
    "end": "request_finished answers False",
    "end kept": "request_finished answers True",
    "sent": "every rank has named it in finished_sending",
}

Phase = Literal["-", "planned", "under way", "moved", "some ranks"]

PHASES: Mapping[Phase, str] = {
    "-": "no completion is owed",
    "planned": "one is owed, and nothing has begun",
    "under way": "bytes have to move yet",
    "moved": "bytes have moved, and no rank has said so",
    "some ranks": "some ranks have said so, others have not",
}
"""How far the transfers of a request are."""


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
    Way("matched", "defer", "deferred", "connector"),
    Way("deferred", "answer", "waiting", "connector"),
    Way("deferred", "answer", "preempted", "connector"),
    Way("matched", "answer", "waiting", "connector"),
    Way("matched", "answer", "preempted", "connector"),
    Way("waiting", "match", "matched", "connector"),
    Way("deferred", "match", "matched", "connector"),
    Way("preempted", "match", "matched", "connector"),
    Way("waiting", "admit", "running", "vLLM"),
    Way("matched", "admit", "running", "vLLM"),
    Way("preempted", "admit", "running", "vLLM"),
    Way("matched", "admit load", "loading", "vLLM"),
    Way("loading", "received", "loaded", "connector"),
    Way("loaded", "admit", "running", "vLLM"),
    Way("loaded", "admit load", "loading", "connector"),  # the first has failed
    Way("loaded", "again", "waiting", "vLLM"),
    Way("loaded", "again", "preempted", "vLLM"),
    Way("loaded", "match", "matched", "connector"),  # after a failure, and there is no room
    Way("loaded", "defer", "deferred", "connector"),
    Way("running", "preempt", "preempted", "vLLM"),
    Way("waiting", "end", "gone", "client"),
    Way("deferred", "end", "gone", "client"),
    Way("matched", "end", "gone", "client"),
    Way("loaded", "end", "gone", "client"),
    Way("running", "end", "gone", "connector"),
    Way("preempted", "end", "gone", "client"),
    Way("waiting", "end kept", "kept", "connector"),
    Way("deferred", "end kept", "kept", "connector"),
    Way("matched", "end kept", "kept", "connector"),
    Way("loaded", "end kept", "kept", "connector"),
    Way("running", "end kept", "kept", "connector"),
    Way("preempted", "end kept", "kept", "connector"),
    Way("loading", "end", "ended loading", "client"),
    Way("loading", "end kept", "ended loading", "connector"),
    Way("ended loading", "received", "gone", "connector"),
    Way("ended loading", "sent", "gone", "connector"),
    Way("kept", "sent", "gone", "connector"),
)  # fmt: skip

PAIRS: tuple[tuple[State, Phase], ...] = (
    ("waiting", "-"),
    ("deferred", "-"),
    ("matched", "-"),
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
