"""What the contract says about each request at this moment, derived from events alone.

Checks ask the ledger; it judges nothing.
"""

from __future__ import annotations

import functools
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from kvconform.conformance.cycle import Phase, State
from kvconform.conformance.prefixes import Prefixes
from kvconform.faults.packages import TIGHT, package_of
from kvconform.scenario.actions import Arrive, action_from_json
from kvconform.scenario.identity import Identity
from kvconform.scenario.prompt import follow
from kvconform.scenario.shape import Shape
from kvconform.scenario.trace import Event, Kind

LOADING = "WAITING_FOR_REMOTE_KVS"

_BY_STATUS: dict[str, State] = {"RUNNING": "running", "PREEMPTED": "preempted"}

BY_ITSELF = frozenset({"FINISHED_STOPPED", "FINISHED_LENGTH_CAPPED", "FINISHED_REPETITION"})
"""How requests end by what they have computed."""


@dataclass
class Facts:
    """A request as the contract sees it; where prefill and decode are apart, one leg of it.

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
        left_blocks: blocks of the first KV group that it had at its end.
        lost: its client went away before it was forwarded.
        known: leading tokens of its prompt that an earlier request of the same identity has, in its
            prompt or its output.
        foreign: the same of an earlier request of another identity.
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
    """

    name: str
    engine: int
    tokens: tuple[int, ...]
    identity: Identity
    max_tokens: int
    stop: int | None = None
    known: int = 0
    foreign: int = 0
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
    after: str | None = None
    then: str | None = None
    prefills: bool = False
    by_itself: bool = False
    life: int = 0
    left_blocks: int = 0
    lost: bool = False
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
        if self.status == LOADING:
            return "loading" if self.loading else "loaded"
        if self.deferred:
            return "deferred"
        return _BY_STATUS.get(self.status, "waiting")

    @property
    def phase(self) -> Phase:
        """How far its transfers are."""
        if any(self.under_way.values()):
            return "under way"
        if not self.open:
            return "-"
        if any(self.reports.values()):
            return "some ranks"
        return "moved" if self.moved else "planned"


_WALKS = frozenset({Kind.STATUS, Kind.HOOK, Kind.ADMITTED})
"""Events after which the request that they are of may be in another state."""


class Ledger:
    """Facts of all requests, and of the run.

    Attributes:
        requests: by name.
        faults: fault packages that took effect, with how often.
        coverage: (fault, state, phase) seen: which fault met a request in which state.
        walked: pairs of a request's state and the one that followed.
        world_version: changes whenever something happened that may change a lookup's answer.
        unreported: (engine, rank, block) whose load failed and was not reported yet, to whom.
        held: whether a transfer has been held open in this run.
        resets: of connectors' caches.
        saved_as_planned: no rank saved what its scheduler half had not planned.
    """

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.requests: dict[str, Facts] = {}
        self.faults: Counter[str] = Counter()
        self.coverage: Counter[tuple[str, State, Phase]] = Counter()
        self.walked: Counter[tuple[State, State]] = Counter()
        self.world_version = 0
        self.unreported: dict[tuple[int, int, int], str] = {}
        self.held = False
        self.steps = 0
        self.checked_steps = 0
        self.saved_as_planned = True
        self.resets = 0
        self._kept = Prefixes()
        self._to_keep: list[Facts] = []
        self._stored = 0  # blocks, at most; those that were forgotten may take room still
        self._connector_event = False
        self._forgets = False
        self._computed: dict[str, int] = {}
        self._asked: dict[str, int] = {}
        self._prefixes = Prefixes()
        # Before and after the checks; looked up once, for most events are of no interest here.
        self._before = {k: getattr(self, f"_{k}") for k in Kind if hasattr(self, f"_{k}")}
        self._after = {
            k: getattr(self, f"_after_{k}") for k in Kind if hasattr(self, f"_after_{k}")
        }
        self._current: dict[str, Facts] = {}
        """Those that a scheduler knows, or that something is owed for: what a look costs must not
        grow with the run."""
        if shape.num_blocks <= TIGHT:
            self.faults["tight-pool"] += 1

    def open_requests(self) -> list[Facts]:
        """Requests for which a completion is owed."""
        return [f for f in self._current.values() if f.open]

    def alive(self) -> list[Facts]:
        """Requests that no scheduler has forgotten."""
        return [f for f in self._current.values() if f.status is not None]

    def hear(self, event: Event) -> None:
        """Take an event in, before the checks see it."""
        handler = self._before.get(event.kind)
        if handler is not None:
            handler(event)

    def settle(self, event: Event) -> None:
        """Take an event in, after the checks have judged it against what was before."""
        handler = self._after.get(event.kind)
        if handler is not None:
            handler(event)
        if event.kind is Kind.OUTPUT:
            for name in event.data["recving"] | event.data["sending"]:
                self._walk(name)
        elif event.request is not None and event.kind in _WALKS:
            self._walk(event.request)

    def _walk(self, name: str) -> None:
        facts = self.requests.get(name)
        if facts is not None and (state := facts.state) != facts.was:
            self.walked[facts.was, state] += 1
            facts.was = state

    # -- before the checks ------------------------------------------------------------------------

    def _action(self, event: Event) -> None:
        data = event.data
        if not data["effect"]:
            return
        do = data["action"]["do"]
        package = package_of(action_from_json(data["action"], "action"))
        if package is not None and do != "release":  # by then it has been
            met = self.alive()
            if event.request in self.requests and do != "repeat":
                met = [self.requests[event.request]]
            for pair in {(facts.state, facts.phase) for facts in met}:
                self.coverage[(package, *pair)] += 1
        if do == "arrive":
            action = action_from_json(data["action"], "action")
            assert isinstance(action, Arrive)
            assert event.request is not None
            self._arrive(event.request, event.engine, action)
        elif do == "step":
            return
        else:
            if do == "lose" and event.request is not None:
                self.requests[event.request].lost = True
            assert package is not None
            self.faults[package] += 1
        self.world_version += 1

    def _arrive(self, name: str, engine: int, action: Arrive) -> None:
        if name in self.requests:
            self._supersede(name)
            self.faults["same-id"] += 1
        tokens = action.prompt.tokens(action.identity)
        facts = Facts(name, engine, tokens, action.identity, action.max_tokens, action.stop)
        if self.shape.topology == "pd":
            facts.prefills, facts.max_tokens = True, 1
            self._asked[name] = action.max_tokens
            self.faults["handover"] += 1
        self._enter(facts)
        if facts.known >= self.shape.block_size:
            self.faults["full-hit"] += 1
        if facts.foreign >= self.shape.block_size:
            self.faults["tenants"] += 1

    def _supersede(self, name: str) -> None:
        """Another request has this id now; what is known of the old one goes on under another."""
        old = self.requests.pop(name)
        self._current.pop(name, None)
        old.name = f"{name} of old, {len(self.requests)}"
        self.requests[old.name] = old
        self._computed.pop(name, None)
        self._forgive(name)

    def _forwarded(self, event: Event) -> None:
        assert event.request is not None
        first = self.requests[event.data["after"]]
        if first.then is None:
            first.then = event.request
        facts = Facts(
            event.request, event.engine, tuple(event.data["tokens"]), first.identity,
            self._asked[first.name], event.data["stop"], after=first.name,
        )  # fmt: skip
        self._enter(facts)
        self.world_version += 1

    def _enter(self, facts: Facts) -> None:
        facts.known, facts.foreign = self._prefixes.shared(facts.tokens, facts.identity)
        self._prefixes.add(facts.whole, facts.identity)
        facts.life = self.resets
        self.requests[facts.name] = self._current[facts.name] = facts

    def _status(self, event: Event) -> None:
        assert event.request is not None
        facts = self.requests.get(event.request)
        if facts is None:
            return
        facts.status = event.data["new"]
        facts.forgotten = event.data["new"] is None
        if facts.forgotten and facts.by_itself and facts.life == self.resets:
            self._to_keep.append(facts)
        self._let_go(facts)
        self.world_version += 1

    def _hook(self, event: Event) -> None:
        # What workers tell the scheduler half beside completions may make a save visible.
        if event.data["name"] == "update_connector_output":
            self.world_version += event.data["told"]
        if event.data["name"] == "reset_cache":
            self.resets += 1
            self._kept, self._to_keep = Prefixes(), []
            for facts in self.requests.values() if event.data["answer"] is True else ():
                # Who has not ended may compute anew what it will save; that is judged kindly.
                mine = facts.engine == event.engine  # of other engines the KV may be new
                facts.before_reset |= mine and (facts.forgotten or facts.ended)
        if event.request is None or event.request not in self.requests:
            return
        facts = self.requests[event.request]
        name = event.data["name"]
        if name == "get_num_new_matched_tokens":
            answer = event.data["answer"]
            facts.deferred = isinstance(answer, tuple) and bool(answer) and answer[0] is None

    def _admitted(self, event: Event) -> None:
        assert event.request is not None
        facts = self.requests[event.request]
        facts.deferred = False
        self.world_version += 1
        self._forgive(event.request)
        if event.data["external"] > 0:
            size = self.shape.block_size
            low, high = event.data["local"], event.data["local"] + event.data["external"]
            facts.blocks = tuple(
                b for ids in event.data["blocks"] for b in ids[low // size : -(-high // size)]
            )
            facts.planned = None
            facts.load_is_async = event.data["async"]
            facts.load_step = event.step
            facts.loading = event.data["async"]
            facts.moved = False
            if event.data["async"]:
                facts.received = 0  # counted for each load
                for key in [k for k in facts.reports if k[0] == "recving"]:
                    del facts.reports[key]

    def _scheduled(self, event: Event) -> None:
        self.steps += 1
        if event.data["tokens"] or self._connector_event:
            self.checked_steps += 1
        self._connector_event = False
        for name, count in event.data["tokens"].items():
            before = self._computed.get(name, 0)
            self._computed[name] = before + count
            if before // self.shape.block_size != (before + count) // self.shape.block_size:
                self.world_version += 1  # a block was filled: it may have been saved

    def _planned(self, event: Event) -> None:
        facts = self.requests.get(event.request or "")
        if facts is not None:
            facts.planned = (facts.planned or frozenset()) | set(event.data["blocks"])

    def _opened(self, event: Event) -> None:
        facts = self.requests.get(event.request or "")
        if facts is not None:
            facts.under_way[event.data["direction"]] += 1

    def _moved(self, event: Event) -> None:
        self.world_version += 1
        self._connector_event = True
        if event.data["opened"] != event.step:
            self.held = True
        assert event.request is not None
        assert event.rank is not None
        facts = self.requests[event.request]
        direction, failed = event.data["direction"], event.data["failed"]
        facts.under_way[direction] -= facts.under_way[direction] > 0
        facts.moved = True
        if direction == "save":  # vLLM is told of failed loads only
            self.saved_as_planned &= event.data["planned"] is not False
            return
        for block in set(event.data["blocks"]) - set(failed):
            self.unreported.pop((event.engine, event.rank, block), None)  # a retry moved it
        for block in failed:
            self.unreported[event.engine, event.rank, block] = event.request
        facts.load_failed |= bool(failed)
        if event.data["planned"] is not None:
            whole = tuple(event.data["blocks"]) == facts.blocks
            facts.plan_followed = event.data["planned"] and whole

    def _closed(self, event: Event) -> None:
        self.world_version += 1

    def _reset(self, event: Event) -> None:
        self.world_version += 1

    def _forgot(self, event: Event) -> None:
        self._forgets = True

    # -- after the checks -------------------------------------------------------------------------

    def _after_hook(self, event: Event) -> None:
        # The lookup in which it was forgotten could say so, and the next one has to.
        self.world_version += self._forgets
        self._forgets = False
        if event.data["name"] in ("request_finished", "request_finished_all_groups"):
            assert event.request is not None
            facts = self.requests[event.request]
            facts.ended = True
            self.world_version += 1
            facts.delayed = bool(event.data["delayed"])
            facts.moved &= facts.loading
            facts.ended_loading = facts.loading
            facts.by_itself = event.data["status"] in BY_ITSELF
            blocks = event.data["blocks"]
            grouped = isinstance(blocks, tuple)
            facts.left_blocks = len((blocks[0] if blocks else ()) if grouped else blocks)
            self._stored += facts.left_blocks

    def _after_ran(self, event: Event) -> None:
        self.world_version += 1
        self._connector_event = True
        assert event.rank is not None
        for direction in ("recving", "sending"):
            for name in event.data[direction]:
                if name in self.requests:
                    self.requests[name].reports[direction, event.rank] += 1
        for block in event.data["invalid"]:
            self.unreported.pop((event.engine, event.rank, block), None)
        for facts in self._current.values():
            if facts.engine == event.engine and (
                facts.name in event.data["failed"] or event.data["invalid"] & set(facts.blocks)
            ):
                facts.load_failed = True
        for name in event.data["failed"]:
            self._forgive(name)

    def _forgive(self, request: str) -> None:
        """The failures of a request's load were reported as a whole, or are of an earlier load."""
        for key in [k for k, owner in self.unreported.items() if owner == request]:
            del self.unreported[key]

    def _after_output(self, event: Event) -> None:
        for name in event.data["recving"]:
            if name in self.requests:
                facts = self.requests[name]
                facts.received += 1
                facts.loading = False
        for name in event.data["sending"]:
            if name in self.requests:
                self.requests[name].sent = True
                self.requests[name].loading = False
        for name in event.data["recving"] | event.data["sending"]:
            if name in self.requests:
                self._let_go(self.requests[name])
        self.world_version += 1

    def _let_go(self, facts: Facts) -> None:
        """Nothing more happens to a forgotten request for which nothing is owed."""
        if facts.forgotten and not facts.open:
            self._current.pop(facts.name, None)

    def _after_tokens(self, event: Event) -> None:
        assert event.request is not None
        self.requests[event.request].delivered.extend(event.data["tokens"])

    def deserted(self, facts: Facts) -> bool:
        """Whether blocks are kept for another engine that may never come for them."""
        alone = facts.lost or (facts.then is not None and self.faults["peer-gone"] > 0)
        return facts.prefills and facts.delayed and not facts.sent and alone

    def has_computed(self, facts: Facts) -> bool:
        """Whether it was ever scheduled."""
        return self._computed.get(facts.name, 0) > 0

    def kept_tokens(self, facts: Facts) -> int:
        """Leading tokens of its prompt that a store which keeps all must have, in full blocks.

        0 where that cannot be said: something is being saved yet, saves or loads have failed, the
        store may have run out of room.
        """
        spoiled = ("full", "fail-save", "fail-load", "lost", "forget", "shutdown")
        if self.shape.topology != "store" or any(self.faults[name] for name in spoiled):
            return 0
        size = self.shape.block_size
        if self._to_keep and not any(f.delayed and not f.sent for f in self._current.values()):
            for left in self._to_keep:
                computed = len(left.tokens) + len(left.delivered) - 1
                blocks = min(left.left_blocks, computed // size)
                self._kept.add(left.whole[: blocks * size], left.identity)
            self._to_keep.clear()
        if self._stored > self.shape.store_blocks:
            return 0
        return self._kept.shared(facts.tokens, facts.identity)[0] // size * size

    def known_since_reset(self, facts: Facts) -> int:
        """Leading tokens of its prompt that a request since the connector's last reset has."""
        return max(
            (
                _shared(facts.tokens, other.whole)
                for other in self.requests.values()
                if other is not facts
                and other.identity == facts.identity
                and not other.before_reset
            ),
            default=0,
        )


def _shared(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    count = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        count += 1
    return count


def describe(facts: Facts) -> str:
    """A request in words, for messages."""
    state: Any = facts.status or ("forgotten" if facts.forgotten else "not there yet")
    return f"{facts.name} ({state})"
