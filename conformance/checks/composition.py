"""KVC-8xx: the connector amid what else happens to an engine."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from kvconform.conformance.checks.base import Check
from kvconform.conformance.facts import LOADING
from kvconform.scenario.trace import Event, Kind

_HOOK = "get_num_new_matched_tokens"


class ResetForgets(Check):
    """KVC-801."""

    rule = "KVC-801"

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self._reset: set[int] = set()

    def on_hook(self, event: Event) -> None:
        name, answer = event.data["name"], event.data.get("answer")
        if name == "reset_cache" and answer is True:
            self._reset.add(event.engine)
        if name != _HOOK or event.engine not in self._reset or event.request is None:
            return
        facts = self.ledger.requests[event.request]
        if facts.after or self.ledger.has_computed(facts):
            return  # what it finds was handed over to it, or it saved that itself
        now = self.ledger.known_since_reset(facts)
        self.reached += facts.known >= self.ledger.shape.block_size > now
        promised = answer[0] if isinstance(answer, tuple) else None
        if not isinstance(promised, int) or promised <= 0:
            return
        if event.data["local"] + promised > now:
            self.fail(
                event,
                "found again",
                expected=f"at most {now} tokens for {facts.name}: the connector has forgotten what "
                "was stored before its reset",
                got=f"{promised} beyond {event.data['local']} local ones",
                why="after an update of the weights, the old model's KV is served",
                where=_HOOK,
            )


class LeavesItToOthers(Check):
    """KVC-805: of a child of a composition. One that runs, or has ended, is KVC-302's or 301's."""

    rule = "KVC-805"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._promised: dict[tuple[int, str | None], int] = {}
        self._passed_over: set[tuple[int, str | None]] = set()

    def on_hook(self, event: Event) -> None:
        if event.data["name"] == _HOOK:
            self._promised[event.engine, event.request] = _promise(event.data["answer"])

    def on_admitted(self, event: Event) -> None:
        key = (event.engine, event.request)
        if event.data["external"]:
            self._passed_over.discard(key)
        elif event.data["fresh"]:
            self._passed_over.add(key)
            self.reached += self._promised.get(key, 0) > 0

    def on_opened(self, event: Event) -> None:
        data = event.data
        if data["direction"] not in ("load", "pull") or not data["blocks"]:
            return
        if (event.engine, event.request) in self._passed_over:
            self.fail(
                event, "loads what it was not to", where="update_state_after_alloc",
                expected=f"no {data['direction']} for {event.request}, of which this child was to "
                "load 0 tokens",
                got=f"a {data['direction']} of {len(data['blocks'])} block(s)",
                why="another child, or vLLM itself, fills these blocks: two write there",
            )  # fmt: skip

    def on_output(self, event: Event) -> None:
        for name in sorted(event.data["recving"]):
            facts = self.ledger.requests.get(name)
            waits = facts is not None and facts.status == LOADING
            if waits and (event.engine, name) in self._passed_over:
                self.fail(
                    event, "reports another one's load", where="get_finished: finished_recving",
                    side="worker half",
                    expected=f"nothing of {name}, which another child loads",
                    got=f"{name} in finished_recving of this one",
                    why="the request goes on before its KV is there", request=name,
                )  # fmt: skip


class OneLoads(Check):
    """KVC-806."""

    rule = "KVC-806"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._answers: defaultdict[tuple[int, str | None], dict[int, Any]] = defaultdict(dict)
        self._told: dict[int, int] = {}
        self._admitted: Event | None = None

    def on_admitted(self, event: Event) -> None:
        self._told.clear()
        self._admitted = event

    def on_child(self, event: Event) -> None:
        data = event.data
        if data["as"] == Kind.ADMITTED:
            self._told[data["child"]] = data["external"]
        elif data["as"] == Kind.HOOK and data["name"] == _HOOK:
            self._answers[event.engine, event.request][data["child"]] = data["answer"]

    def on_hook(self, event: Event) -> None:
        answers = self._answers.get((event.engine, event.request))
        if not answers:
            return  # no composition
        if event.data["name"] == _HOOK:
            answer = event.data["answer"]
            if _promise(answer) and answer not in answers.values():
                self.fail(
                    event, "promised by nobody", where=_HOOK,
                    expected=f"what one child has promised for {event.request}: "
                    + ", ".join(map(str, answers.values())),
                    got=str(answer), why="no child can load that",
                )  # fmt: skip
        elif event.data["name"] == "update_state_after_alloc" and self._admitted is not None:
            self._loads(event, self._admitted, answers)
            self._admitted = None

    def _loads(self, event: Event, admitted: Event, answers: dict[int, Any]) -> None:
        owed, is_async = admitted.data["external"], admitted.data["async"]
        self.reached += owed > 0
        loaders = {child: tokens for child, tokens in self._told.items() if tokens}
        able = {
            child for child, answer in answers.items()
            if _promise(answer) >= owed and bool(answer[1]) is is_async
        }  # fmt: skip
        if list(loaders.values()) != ([owed] if owed else []):
            kind = (
                "several load" if len(loaders) > 1 else "other tokens" if loaders else "none does"
            )
        elif not able.issuperset(loaders):
            kind = "another one than promised"
        else:
            return
        self.fail(
            event, kind, where="update_state_after_alloc",
            expected=f"{owed} tokens of {event.request} are left to a child that promised them"
            if owed else f"no child is to load anything of {event.request}",
            got=", ".join(f"{n} to child {child}" for child, n in loaders.items()) or "to nobody",
            why="the request waits for, or reads, what nobody loads, or two load it at once",
        )  # fmt: skip


class AllSent(Check):
    """KVC-807."""

    rule = "KVC-807"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._owed: defaultdict[str | None, set[int]] = defaultdict(set)
        self._done: defaultdict[tuple[str, int | None], set[int]] = defaultdict(set)
        self._composed = False

    def on_child(self, event: Event) -> None:
        data = event.data
        self._composed = True
        if data["as"] == Kind.HOOK and data["name"].startswith("request_finished"):
            if data["delayed"]:
                self._owed[event.request].add(data["child"])
        elif data["as"] in (Kind.RAN, Kind.OUTPUT):
            for name in data["sending"]:
                self._done[name, event.rank].add(data["child"])

    def on_hook(self, event: Event) -> None:
        if not self._composed or not event.data["name"].startswith("request_finished"):
            return
        owed = self._owed[event.request]
        if bool(owed) is not bool(event.data["delayed"]):
            self.fail(
                event, "another answer", where="request_finished",
                expected=f"{bool(owed)}: " + (_children(owed) if owed else "no child")
                + f" keeps the blocks of {event.request}",
                got=str(event.data["delayed"]),
                why="they are given on while they are read" if owed
                else "nobody will ever report them",
            )  # fmt: skip

    def on_status(self, event: Event) -> None:
        if event.data["old"] is None:  # it may be of an id that comes again
            self._owed.pop(event.request, None)
            for key in [key for key in self._done if key[0] == event.request]:
                del self._done[key]

    def on_ran(self, event: Event) -> None:
        for name in sorted(event.data["sending"]) if self._composed else ():
            self.reached += self.ledger.held
            missing = self._owed[name] - self._done[name, event.rank]
            if missing:
                self.fail(
                    event, "before the last", where="get_finished: finished_sending",
                    expected=f"{name} in finished_sending of rank {event.rank} when every child "
                    "that keeps its blocks has reported it there",
                    got=f"the report, and none of {_children(missing)}",
                    why="the blocks are given on while they are read", request=name,
                )  # fmt: skip

    def on_left(self, event: Event) -> None:
        facts = self.ledger.requests.get(event.request or "")
        if event.data["what"] != "request" or facts is None or not self._composed:
            return
        owed = self._owed[facts.name]
        if owed and facts.delayed and not facts.sent and owed <= self._done[facts.name, None]:
            self.fail(
                event, "never passed on", where="get_finished: finished_sending",
                expected=f"finished_sending for {facts.name}: {_children(owed)} has reported it",
                got="none in the whole drain", why="its blocks never come back",
            )  # fmt: skip


def _promise(answer: Any) -> int:
    """The tokens that a lookup has promised; 0 where it was none, or no number."""
    promised = answer[0] if isinstance(answer, tuple) and len(answer) == 2 else None
    return promised if isinstance(promised, int) else 0


def _children(which: set[int]) -> str:
    return "child " + " and ".join(map(str, sorted(which)))


OF_THE_WHOLE = (OneLoads, AllSent)
"""What a composition owes as such."""

CHECKS = (ResetForgets,)
