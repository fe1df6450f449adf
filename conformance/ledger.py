"""What the contract says about each request at this moment, derived from events alone.

Checks ask the ledger; it judges nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from kvconform.conformance.cycle import Phase, State
from kvconform.conformance.facts import BY_ITSELF, Facts
from kvconform.conformance.kept import SPOILS, Kept
from kvconform.conformance.prefixes import Prefixes
from kvconform.faults.packages import is_tight, package_of
from kvconform.scenario.actions import Abort, Arrive, Drop, Lose, Release, action_from_json
from kvconform.scenario.identity import Part
from kvconform.scenario.shape import Shape
from kvconform.scenario.trace import Event, Kind

_PACKAGE_OF: Mapping[Part, str] = {"tenant": "tenants", "media": "tenants", "embeds": "embeds"}
"""By what tells it from an earlier request, the package that brings such a request."""

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
        restarts: engines that have started anew, with how often.
        saved_as_planned: no rank saved what its scheduler half had not planned.
    """

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.model = ""
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
        self.restarts: Counter[int] = Counter()
        self._kept = Kept(shape)
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
        if is_tight(shape):
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
        if data["action"]["do"] == "step":
            return
        self.world_version += 1
        action = action_from_json(data["action"], "action")
        if isinstance(action, Arrive):
            assert event.request is not None
            self._arrive(event.request, event.engine, action)
            return
        package = package_of(action)
        assert package is not None
        self.faults[package] += 1
        if isinstance(action, Lose) and event.request is not None:
            self.requests[event.request].lost = True
        if isinstance(action, Abort | Drop) and event.request in self.requests:
            self._meets(package, [self.requests[event.request]])
        elif not isinstance(action, Release):  # by then it has been
            self._meets(package, self.alive())

    def _meets(self, package: str, met: Sequence[Facts]) -> None:
        """A fault met these requests."""
        for pair in {(facts.state, facts.phase) for facts in met}:
            self.coverage[(package, *pair)] += 1

    def _arrive(self, name: str, engine: int, action: Arrive) -> None:
        before, faults = self.alive(), []
        if name in self.requests:
            self._supersede(name)
            faults.append("same-id")
        identity = replace(action.identity, model=self.model)
        tokens = action.prompt.tokens(identity)
        facts = Facts(name, engine, tokens, identity, action.max_tokens, action.stop)
        if self.shape.topology == "pd":
            facts.prefills, facts.max_tokens = True, 1
            self._asked[name] = action.max_tokens
            faults.append("handover")
        self._enter(facts)
        if facts.known >= self.shape.block_size:
            faults.append("full-hit")
        for part, package in _PACKAGE_OF.items():
            if facts.foreign.get(part, 0) >= self.shape.block_size and package not in faults:
                faults.append(package)
        if identity.embeds is not None and "embeds" not in faults:
            faults.append("embeds")
        if is_tight(self.shape):
            faults.append("tight-pool")
        for package in faults:
            self.faults[package] += 1
            self._meets(package, before)

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
        identity = replace(first.identity, model=self.model)
        facts = Facts(
            event.request, event.engine, tuple(event.data["tokens"]), identity,
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
        facts.admitted = False
        facts.forgotten = event.data["new"] is None
        if facts.forgotten and facts.by_itself and facts.life == self.resets:
            self._kept.left(facts)
        self._let_go(facts)
        self.world_version += 1

    def _hook(self, event: Event) -> None:
        # What workers tell the scheduler half beside completions may make a save visible.
        if event.data["name"] == "update_connector_output":
            self.world_version += event.data["told"]
        if event.data["name"] == "reset_cache":
            self.resets += 1
            self._kept.forget()
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
            found = answer[0] if isinstance(answer, tuple) and answer else 0
            facts.deferred = found is None
            facts.matched = isinstance(found, int) and found > 0

    def _admitted(self, event: Event) -> None:
        assert event.request is not None
        facts = self.requests[event.request]
        facts.deferred = facts.matched = False
        facts.admitted = True
        self.world_version += 1
        self._forgive(event.request)
        if event.data["external"] > 0:
            size = self.shape.block_size
            low, high = event.data["local"], event.data["local"] + event.data["external"]
            facts.blocks = tuple(
                b for ids in event.data["blocks"] for b in ids[low // size : -(-high // size)] if b
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

    _corrupted = _forgot

    def _restarted(self, event: Event) -> None:
        saving = any(f.delayed and not f.sent for f in self._current.values())
        self._kept.died(saving, event.data["remembers"], event.data["orphans"] > 0)
        self._died(event.engine)

    def _redeployed(self, event: Event) -> None:
        self.shape = replace(self.shape, block_size=event.data["block_size"], tp=event.data["tp"])
        self.model = event.data["model"]
        self._kept.shape = self.shape
        self._kept.forget()  # another layout has other blocks
        for engine in range(self.shape.engines):
            self._died(engine)

    def _died(self, engine: int) -> None:
        """Nothing is owed any more by an engine that has died, nor to it."""
        self.restarts[engine] += 1
        self.world_version += 1
        for facts in [f for f in self._current.values() if f.engine == engine]:
            facts.died = facts.forgotten = True
            facts.status = None
            facts.loading = facts.delayed = facts.admitted = facts.deferred = False
            facts.under_way.clear()
            facts.was = facts.state
            del self._current[facts.name]
        for key in [k for k in self.unreported if k[0] == engine]:
            del self.unreported[key]

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
            tables = blocks if isinstance(blocks, tuple) else (blocks,)
            facts.left = tuple(tuple(table) for table in tables)
            self._kept.takes(sum(len(table) for table in facts.left))

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
                facts.loading = facts.admitted = False
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
        unreached = self.faults["peer-gone"] or self.faults["restart"]
        alone = facts.lost or (facts.then is not None and unreached > 0)
        return facts.prefills and facts.delayed and not facts.sent and alone

    def has_computed(self, facts: Facts) -> bool:
        """Whether it was ever scheduled."""
        return self._computed.get(facts.name, 0) > 0

    def kept_tokens(self, facts: Facts) -> int:
        """Leading tokens of its prompt that a store which keeps all must have, in full blocks.

        0 where that cannot be said: something is being saved yet, saves or loads have failed, the
        store may have run out of room.
        """
        spoiled = any(self.faults[name] for name in SPOILS)
        saving = any(f.delayed and not f.sent for f in self._current.values())
        return 0 if spoiled else self._kept.tokens(facts, saving)

    def known_since_reset(self, facts: Facts) -> int:
        """Leading tokens of its prompt that a request since the connector's last reset has."""
        return max(
            (
                min(_shared(facts.tokens, other.whole), facts.identity.agrees(other.identity))
                for other in self.requests.values()
                if other is not facts and not other.before_reset
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
