"""KVC-0xx at run time: hooks do not raise."""

from __future__ import annotations

from kvconform.conformance.checks.base import Check
from kvconform.scenario.trace import Event
from kvconform.scenario.violation import Side


class NoExceptionEscapes(Check):
    """KVC-010."""

    rule = "KVC-010"

    def on_scheduled(self, event: Event) -> None:
        if self.ledger.faults and self.ledger.alive():
            self.reached += 1

    def on_raised(self, event: Event) -> None:
        data = event.data
        side: Side = "worker half" if data["half"] == "worker half" else "scheduler half"
        self.fail(
            event,
            f"{data['error']} in {data['name']}",
            expected=f"{data['name']} returns",
            got=f"{data['error']}: {data['message']} ({data['where']}, line {data['line']}: "
            f"{data['source']})",
            why="the exception leaves the hook, and the engine core dies with every request on it",
            where=data["where"],
            side=side,
        )


class Answers(Check):
    """KVC-011."""

    rule = "KVC-011"

    def on_scheduled(self, event: Event) -> None:
        if self.ledger.faults and self.ledger.alive():
            self.reached += 1

    def on_answered(self, event: Event) -> None:
        data = event.data
        side: Side = "worker half" if data["half"] == "worker half" else "scheduler half"
        self.fail(
            event,
            "wrong answer",
            expected=f"{data['name']} answers {data['expected']}",
            got=data["answer"],
            why="vLLM takes the answer apart, and the engine core dies",
            where=data["name"],
            side=side,
        )


CHECKS = (NoExceptionEscapes, Answers)
