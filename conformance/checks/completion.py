"""KVC-3xx: who may be reported as received or sent, when, and how often."""

from __future__ import annotations

from typing import Any

from kvconform.conformance.checks.base import Check
from kvconform.conformance.facts import LOADING, Facts, describe
from kvconform.scenario.trace import Event

_RECVING = "get_finished: finished_recving"
_SENDING = "get_finished: finished_sending"


class OnlyKnown(Check):
    """KVC-301; a repeated completion of a forgotten request is KVC-303, 304 or 305."""

    rule = "KVC-301"
    also = ("KVC-303", "KVC-304", "KVC-305")

    def on_action(self, event: Event) -> None:
        if event.data["action"]["do"] == "abort" and event.request is not None:
            self.reached += self.ledger.requests[event.request].open

    def on_hook(self, event: Event) -> None:
        if event.data["name"].startswith("request_finished"):
            aborted = event.data["status"] == "FINISHED_ABORTED"
            self.reached += aborted and bool(self.ledger.requests[event.request or ""].blocks)

    def on_output(self, event: Event) -> None:
        for name in sorted(event.data["recving"]):
            facts = self.ledger.requests.get(name)
            if facts is None or facts.status is None:
                self._unknown(event, name, facts, "recving")
        for name in sorted(event.data["sending"] - event.data["recving"]):
            facts = self.ledger.requests.get(name)
            if facts is None or facts.status is None:
                self._unknown(event, name, facts, "sending")
        for name in sorted(event.data["sending"] & event.data["recving"]):
            facts = self.ledger.requests.get(name)
            if facts is not None and facts.ended_loading:
                self._unknown(event, name, facts, "sending")

    def _unknown(self, event: Event, name: str, facts: Facts | None, direction: str) -> None:
        where = _RECVING if direction == "recving" else _SENDING
        why = "vLLM's scheduler asserts, and the engine core dies"
        if facts is None:
            self.fail(
                event, "never existed", expected="ids that the scheduler knows", got=repr(name),
                why=why, where=where, request=name,
            )  # fmt: skip
        elif facts.ended_loading and (facts.received or facts.sent or direction == "sending"):
            self.fail(
                event, f"completed twice, {direction}", rule="KVC-304",
                expected=f"one completion of {name}, which ended while it was loading",
                got=f"another one in finished_{direction}", why=why, where=where, request=name,
            )  # fmt: skip
        elif facts.received if direction == "recving" else facts.sent:
            self.fail(
                event, f"after its end, {direction}", rule="KVC-303",
                expected=f"{name} once in finished_{direction}", got="again, later",
                why=why, where=where, request=name,
            )  # fmt: skip
        elif direction == "sending" and facts.ended:
            self.fail(
                event, "not delayed", rule="KVC-305",
                expected=f"no send of {name}: request_finished answered False",
                got="finished_sending after its blocks were freed", why=why, where=where,
                request=name,
            )  # fmt: skip
        else:
            self.fail(
                event, f"forgotten, {direction}",
                expected=f"nothing about {name}, which the scheduler has forgotten",
                got=f"finished_{direction}", why=why, where=where, request=name,
            )  # fmt: skip


class ReceiveStatus(Check):
    """KVC-302: the first of the two bugs that this project began with."""

    rule = "KVC-302"

    def on_admitted(self, event: Event) -> None:
        facts = self.ledger.requests[event.request or ""]
        data = event.data
        if data["fresh"] and not data["external"] and data["local"] and facts.known:
            self.reached += 1

    def on_output(self, event: Event) -> None:
        for name in sorted(event.data["recving"]):
            facts = self.ledger.requests.get(name)
            if facts is None or facts.status is None:
                continue  # KVC-301
            self.reached += 1
            finished = facts.status.startswith("FINISHED")
            if facts.status == LOADING or (finished and facts.ended_loading):
                continue
            self.fail(
                event,
                "finished, but not while loading" if finished else "neither waiting nor finished",
                expected=f"in finished_recving only requests that wait for remote KV; {name} "
                + ("loaded nothing asynchronously" if not facts.load_is_async else "does not"),
                got=f"{describe(facts)} in finished_recving",
                why="its blocks are freed while they are still being sent"
                if finished
                else "vLLM's scheduler asserts, and the engine core dies with every request on it",
                where=_RECVING,
                request=name,
            )


class OncePerRank(Check):
    """KVC-303."""

    rule = "KVC-303"

    def on_ran(self, event: Event) -> None:
        assert event.rank is not None
        for direction in ("recving", "sending"):
            for name in sorted(event.data[direction]):
                facts = self.ledger.requests.get(name)
                if facts is None:
                    continue
                self.reached += self.ledger.held
                if facts.reports[direction, event.rank]:
                    self.fail(
                        event,
                        f"twice, {direction}",
                        expected=f"rank {event.rank} reports {name} once in finished_{direction}",
                        got="again",
                        why="the aggregator counts reports, not ranks: the request completes while "
                        "another rank is still busy",
                        where=_RECVING if direction == "recving" else _SENDING,
                        request=name,
                    )


class AbortWhileLoading(Check):
    """KVC-304."""

    rule = "KVC-304"

    def on_hook(self, event: Event) -> None:
        if event.data["name"].startswith("request_finished"):
            self.reached += self.ledger.requests[event.request or ""].loading

    def on_left(self, event: Event) -> None:
        facts = self.ledger.requests.get(event.request or "")
        if event.data["what"] != "request" or facts is None or not facts.ended_loading:
            return
        if not facts.received and not facts.sent:
            ranks = sorted({rank for (_, rank), count in facts.reports.items() if count})
            self.fail(
                event,
                "never completed",
                expected=f"one completion of {facts.name}, which ended while it was loading",
                got="none in the whole drain"
                + (f"; only rank(s) {', '.join(map(str, ranks))} reported it" if ranks else ""),
                why="its blocks never come back",
                where=_RECVING,
            )


class SendPairing(Check):
    """KVC-305."""

    rule = "KVC-305"

    def on_hook(self, event: Event) -> None:
        if event.data["name"].startswith("request_finished"):
            self.reached += bool(self.ledger.held or self.ledger.faults["abort"])

    def on_ran(self, event: Event) -> None:
        self._not_before_their_end(event)  # one rank alone may be too early

    def on_output(self, event: Event) -> None:
        self._not_before_their_end(event)
        self._only_when_delayed(event)

    def _not_before_their_end(self, event: Event) -> None:
        for name in sorted(event.data["sending"]):
            facts = self.ledger.requests.get(name)
            if facts is None or facts.status is None:
                continue  # KVC-301
            if not facts.ended:
                self.fail(
                    event, "not finished",
                    expected=f"no send of {name} before it finished", got=f"{describe(facts)} in "
                    "finished_sending",
                    why="vLLM's scheduler asserts when it frees the blocks", where=_SENDING,
                    request=name,
                )  # fmt: skip

    def _only_when_delayed(self, event: Event) -> None:
        for name in sorted(event.data["sending"]):
            facts = self.ledger.requests.get(name)
            if facts is None or facts.status is None or not facts.ended:
                continue
            if not facts.delayed:
                self.fail(
                    event, "not delayed",
                    expected=f"no send of {name}: request_finished answered False",
                    got="finished_sending", why="its load is still writing into the blocks that "
                    "are freed now", where=_SENDING, request=name,
                )  # fmt: skip


class ReportsStay(Check):
    """KVC-309."""

    rule = "KVC-309"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._reported: dict[int, int] = {}  # step of each engine's first one that is open

    def on_ran(self, event: Event) -> None:
        if event.data["invalid"] or event.data["failed"]:
            self._reported.setdefault(event.engine, event.step)

    def on_output(self, event: Event) -> None:
        # Another step has been executed since: only then can it matter.
        self.reached += event.step > self._reported.pop(event.engine, event.step)

    def on_wire(self, event: Event) -> None:
        if event.data["problem"] == "answers":
            self.fail(
                event, "changed", where=event.data["hook"],
                expected="an answer that stays what it was until its step has been processed",
                got=event.data["detail"],
                why="executors that do not pickle hand over the sets themselves: what they told is "
                "lost, or is taken for what the next step tells",
            )  # fmt: skip


CHECKS = (OncePerRank, OnlyKnown, ReceiveStatus, AbortWhileLoading, SendPairing, ReportsStay)
