"""KVC-7xx: with faults off, everything goes on."""

from __future__ import annotations

from kvconform.conformance.checks.base import Check
from kvconform.conformance.ledger import LOADING
from kvconform.scenario.trace import Event


class LoadsEnd(Check):
    """KVC-701; a request that is stuck although nobody owes anything is VLL-701."""

    rule = "KVC-701"
    also = ("VLL-701",)

    def on_drain(self, event: Event) -> None:
        waiting = [f for f in self.ledger.alive() if f.status == LOADING or f.deferred]
        self.reached += len(waiting)

    def on_left(self, event: Event) -> None:
        facts = self.ledger.requests.get(event.request or "")
        if event.data["what"] != "request" or facts is None or facts.status is None:
            return
        if facts.status == LOADING and facts.loading:
            ranks = sorted({rank for (d, rank), n in facts.reports.items() if n and d == "recving"})
            self.fail(
                event,
                "load never completed",
                expected=f"finished_recving for {facts.name} within the drain",
                got="none"
                + (f"; only rank(s) {', '.join(map(str, ranks))} reported it" if ranks else ""),
                why="the request waits for ever",
                where="get_finished: finished_recving",
            )


CHECKS = (LoadsEnd,)
