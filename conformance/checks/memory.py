"""KVC-4xx: whose blocks they are, and that they come back."""

from __future__ import annotations

from kvconform.conformance.checks.base import Check
from kvconform.scenario.trace import Event


class NoReuseWhileOpen(Check):
    """KVC-401; blocks that vLLM gave away although the completion was still owed are VLL-401."""

    rule = "KVC-401"
    also = ("VLL-401",)

    def on_moved(self, event: Event) -> None:
        data = event.data
        self.reached += data["opened"] != event.step
        if data.get("read_stale"):
            reader = self.ledger.requests.get(event.request or "")
            offered_by = self.ledger.requests.get(reader.after or "") if reader else None
            kept = offered_by is not None and offered_by.open
            self.fail(
                event,
                "offered blocks changed hands",
                rule="VLL-401" if kept else None,
                side="vLLM" if kept else None,
                expected=f"the blocks that engine {data['source']} offers for {event.request} are "
                "its own until they were read, released, or the lease is over",
                got="one of them had been handed to another owner when it was read"
                + (" (its completion was still owed)" if kept else ""),
                why="the request decodes with another one's KV",
                where="vLLM" if kept else "transport",
            )
            return
        if not data["stale"]:
            return
        facts = self.ledger.requests.get(event.request or "")
        # Whoever lets blocks go while a save is open has planned that save.
        let_go = facts is not None and facts.ended and not facts.delayed
        planner = let_go and data["direction"] == "save"
        owed = facts is not None and (facts.loading if data["direction"] == "load" else facts.open)
        self.fail(
            event,
            f"{data['direction']} after hand-over",
            rule="VLL-401" if owed else None,
            side="vLLM" if owed else "scheduler half" if planner else None,
            expected=f"the {data['direction']} of {event.request} touches its blocks only while "
            "they are its own",
            got=f"block {data['stale'][0]} had been handed to another owner when the bytes moved"
            + (" (its completion was still owed)" if owed else ""),
            why="another request's KV is overwritten"
            if data["direction"] == "load"
            else "another request's KV is saved under this one's key",
            where="vLLM" if owed else "transport",
        )


class _AfterDisturbance(Check):
    """Judges what a drain leaves; provoked by what takes a transfer off its way before that."""

    disturbing = frozenset({"abort", "fail", "drop", "lose", "cut", "hold"})

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self._disturbed = False

    def on_action(self, event: Event) -> None:
        action = event.data["action"]
        transfers = action.get("direction") != "route"  # not what holds up requests
        if action["do"] in self.disturbing and transfers:
            self._disturbed |= event.data["effect"]

    def on_drain(self, event: Event) -> None:
        self.reached += self._disturbed


class BlocksComeBack(_AfterDisturbance):
    """KVC-402."""

    rule = "KVC-402"

    def on_left(self, event: Event) -> None:
        data = event.data
        facts = self.ledger.requests.get(event.request or "")
        if facts is None:
            return
        if data["what"] == "request" and facts.delayed and not facts.sent:
            if facts.ended_loading or self.ledger.deserted(facts):
                return  # KVC-304, KVC-603
            reader = self.ledger.requests.get(facts.then or "")
            if reader is not None and reader.status is not None and not reader.ended:
                return  # it cannot be sent before its reader gets on, who is judged by itself
            ranks = sorted({rank for (d, rank), n in facts.reports.items() if n and d == "sending"})
            self.fail(
                event,
                "send never completed",
                expected=f"finished_sending for {facts.name}: request_finished answered True",
                got="none in the whole drain"
                + (f"; only rank(s) {', '.join(map(str, ranks))} reported it" if ranks else ""),
                why="its blocks never come back, and the engine spins",
                where="get_finished: finished_sending",
            )
        elif data["what"] == "aggregator" and not (facts.loading and facts.forgotten):
            # Not one that vLLM forgot while it was loading (until 0.13): nobody asks for the rest.
            self.fail(
                event,
                "surplus report",
                expected="as many reports as ranks for each completion",
                got=f"{facts.name}: {data['detail']}",
                why="the next request of that id completes too early",
                where="get_finished",
            )


class NothingKeptOutside(_AfterDisturbance):
    """KVC-405."""

    rule = "KVC-405"

    def on_left(self, event: Event) -> None:
        if event.data["what"] == "reservation":
            self.fail(
                event, "still held", where="update_connector_output",
                expected="nothing is kept in the store when every request has gone",
                got=event.data["detail"],
                why="the store cannot evict what is pinned, nor use what is reserved",
            )  # fmt: skip


class NothingRemembered(_AfterDisturbance):
    """KVC-406."""

    rule = "KVC-406"
    disturbing = frozenset({"abort"})

    def on_left(self, event: Event) -> None:
        if event.data["what"] == "state":
            self.fail(
                event, "still remembered", where=event.data["detail"],
                expected=f"nothing of {event.request}, which has gone",
                got=f"its id, in {event.data['detail']}",
                why="a table that grows with every request of that kind, until the process dies",
            )  # fmt: skip


CHECKS = (NoReuseWhileOpen, BlocksComeBack, NothingKeptOutside, NothingRemembered)
