"""A request as the contract sees it."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kvconform.conformance.cycle import Phase, State
from kvconform.scenario.identity import Identity, Part
from kvconform.scenario.prompt import follow

LOADING = "WAITING_FOR_REMOTE_KVS"

_BY_STATUS: dict[str, State] = {"RUNNING": "running", "PREEMPTED": "preempted"}

BY_ITSELF = frozenset({"FINISHED_STOPPED", "FINISHED_LENGTH_CAPPED", "FINISHED_REPETITION"})
"""How requests end by what they have computed."""


@dataclass
class Facts:
    """One request; where prefill and decode are apart, one leg of it.

    Attributes:
        tokens: its prompt.
        max_tokens: output tokens after which it ends.
        stop: output token that is a stop token, counted from 1.
        after: of a leg that decodes: the name of the one that prefilled.
        then: of a leg that prefilled: the name of the one that decodes, once it was forwarded.
        prefills: its output goes to another engine.
        was: its state before the last event.
        moved: bytes have moved for the load or send that is owed.
        before_reset: it had ended when its engine's connector forgot all that it had stored.
        plan_followed: its last load moved what its scheduler half had planned, into the blocks that
            were promised; None where that cannot be seen.
        planned: blocks of the last promise that the workers were told of; None: not even its name.
        load_failed: blocks of a load of it failed.
        by_itself: it has ended at its limit or by a stop token.
        life: resets of connectors' caches before it arrived.
        left: blocks that it had at its end, per KV group; empty: it had none.
        lost: its client went away before it was forwarded.
        known: leading tokens of its prompt that an earlier request of the same identity has, in its
            prompt or its output.
        foreign: the same of an earlier request whose KV is another one's beyond what is the same,
            by what tells their identities apart.
        died: its engine did before it had gone.
        status: vLLM's status; None before arrival and after it was forgotten.
        ended: the hook request_finished was called.
        delayed: its answer was True.
        loading: an asynchronous load was promised and its completion is still owed.
        ended_loading: it ended while it was loading.
        received: completed loads (aggregated).
        sent: whether its send completed (aggregated).
        blocks: blocks promised by the last admission with a load.
        load_is_async: whether that load is asynchronous.
        load_step: step of that admission.
        deferred: the last lookup answered None.
        matched: it promised tokens, and has not been admitted since.
        admitted: it has been admitted, and its status has not changed yet.
    """

    name: str
    engine: int
    tokens: tuple[int, ...]
    identity: Identity
    max_tokens: int
    stop: int | None = None
    known: int = 0
    foreign: Mapping[Part, int] = field(default_factory=dict)
    status: str | None = None
    forgotten: bool = False
    ended: bool = False
    delayed: bool = False
    loading: bool = False
    ended_loading: bool = False
    received: int = 0
    sent: bool = False
    blocks: tuple[int, ...] = ()
    planned: frozenset[int] | None = None
    load_is_async: bool = False
    load_step: int = 0
    deferred: bool = False
    matched: bool = False
    admitted: bool = False
    after: str | None = None
    then: str | None = None
    prefills: bool = False
    by_itself: bool = False
    life: int = 0
    left: tuple[tuple[int, ...], ...] = ()
    lost: bool = False
    died: bool = False
    load_failed: bool = False
    plan_followed: bool | None = None
    before_reset: bool = False
    was: State = "new"
    under_way: Counter[str] = field(default_factory=Counter)
    """Per direction: transfers whose bytes have to move yet."""
    moved: bool = False
    delivered: list[int] = field(default_factory=list)
    reports: Counter[tuple[str, int]] = field(default_factory=Counter)
    """Per (direction, rank): reports for the load or send that is open now."""

    @functools.cached_property
    def whole(self) -> tuple[int, ...]:
        """Its prompt, and the output that a right engine gives."""
        return tuple(follow(self.tokens, self.identity, self.max_tokens)[0])

    @property
    def seen(self) -> int:
        """Leading tokens of its prompt that an earlier request has, whosever its KV."""
        return max(self.known, *self.foreign.values(), 0)

    @property
    def output(self) -> tuple[int, ...]:
        """The output that a right engine gives, up to its stop token."""
        output = self.whole[len(self.tokens) :]
        if self.stop is None or self.stop > len(output):
            return output
        return output[: output.index(output[self.stop - 1]) + 1]

    @property
    def open(self) -> bool:
        """Whether a completion is owed for it."""
        return self.loading or (self.delayed and not self.sent)

    @property
    def state(self) -> State:
        """Where it is in its life (see ``cycle``)."""
        if self.forgotten:
            return "gone"
        if self.ended:
            if self.ended_loading:
                return "gone" if self.received or self.sent else "ended loading"
            return "kept" if self.delayed and not self.sent else "gone"
        if self.status is None:
            return "new"
        if self.admitted:  # its status follows
            return "loading" if self.loading else "running"
        if self.status == LOADING:
            return "loading" if self.loading else "loaded"
        if self.deferred:
            return "deferred"
        if self.matched:
            return "matched"
        return _BY_STATUS.get(self.status, "waiting")

    @property
    def phase(self) -> Phase:
        """How far its transfers are."""
        direction = "recving" if self.loading else "sending"
        if self.open and any(n for (d, _), n in self.reports.items() if d == direction):
            return "some ranks"
        if any(self.under_way.values()):
            return "under way"
        if not self.open:
            return "-"
        return "moved" if self.moved else "planned"


def describe(facts: Facts) -> str:
    """A request in words, for messages."""
    state: Any = facts.status or ("forgotten" if facts.forgotten else "not there yet")
    return f"{facts.name} ({state})"
