"""KVC-7xx, VLL-703: with faults off, everything goes on, and some of it before."""

from __future__ import annotations

from collections import Counter

from kvconform.conformance.checks.base import Check
from kvconform.conformance.facts import LOADING
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
                # Its workers cannot report what they have never heard of.
                side="scheduler half" if facts.planned is None and not facts.moved else None,
            )


class PendingEnds(Check):
    """KVC-702."""

    rule = "KVC-702"

    def on_drain(self, event: Event) -> None:
        self.reached += self.ledger.held

    def on_left(self, event: Event) -> None:
        if event.data["what"] == "pending":
            hook = event.data["detail"]
            self.fail(
                event,
                "pending for ever",
                expected=f"{hook} answers False when nothing is under way any more",
                got="True at the end of the drain",
                why="the engine preempts nobody and waits for blocks"
                if "block" in hook
                else "the engine's loop never rests",
                where=hook,
            )


class FailedIsComputed(Check):
    """VLL-703."""

    rule = "VLL-703"

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self._loads: Counter[str] = Counter()

    def on_tokens(self, event: Event) -> None:
        self._loads.pop(event.request or "", None)

    def on_status(self, event: Event) -> None:
        if event.data["new"] in (None, "PREEMPTED"):
            self._loads.pop(event.request or "", None)

    def on_restarted(self, event: Event) -> None:
        self._loads.clear()

    on_redeployed = on_restarted

    def on_hook(self, event: Event) -> None:
        if event.data["name"] == "get_num_new_matched_tokens" and event.request:
            facts = self.ledger.requests[event.request]
            self.reached += facts.load_failed and not facts.delivered

    def on_admitted(self, event: Event) -> None:
        facts = self.ledger.requests[event.request or ""]
        if not event.data["external"] or not facts.load_failed:
            return
        self._loads[facts.name] += 1
        if self._loads[facts.name] > INSISTS:
            self.fail(
                event,
                "asked for over and over",
                expected=f"{facts.name} is computed when its load goes on failing",
                got=f"load number {self._loads[facts.name]} since the first one failed, and no "
                "token in between",
                why="the connector is asked again at once and without a limit: the request never "
                "gets on, and its blocks are kept from others",
                where="schedule",
            )


INSISTS = 6
"""Loads in a row that may fail."""

CHECKS = (LoadsEnd, PendingEnds, FailedIsComputed)
