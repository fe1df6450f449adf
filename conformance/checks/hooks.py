"""KVC-0xx at run time: hooks do not raise."""

from __future__ import annotations

from kvconform.conformance.checks.base import Check
from kvconform.scenario.trace import Event
from kvconform.scenario.violation import Side


class NoExceptionEscapes(Check):
    """KVC-010; what is raised at the very end is KVC-802."""

    rule = "KVC-010"
    also = ("KVC-802",)

    def on_scheduled(self, event: Event) -> None:
        if self.ledger.faults and self.ledger.alive():
            self.reached += 1

    def on_raised(self, event: Event) -> None:
        data = event.data
        side: Side = "worker half" if data["half"] == "worker half" else "scheduler half"
        last = data["name"] == "shutdown"
        self.fail(
            event,
            f"{data['error']} in {data['name']}",
            rule="KVC-802" if last else None,
            expected=f"{data['name']} returns",
            got=f"{data['error']}: {data['message']} ({data['where']}, line {data['line']}: "
            f"{data['source']})",
            why="the other half is not shut down, and what it holds outside stays"
            if last
            else "the exception leaves the hook, and the engine core dies with every request on it",
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


class ShutsDown(Check):
    """KVC-802: counts its provocation; the evidence comes to :class:`NoExceptionEscapes`."""

    rule = "KVC-802"

    def on_action(self, event: Event) -> None:
        action = event.data["action"]["do"]
        self.reached += action == "stop" and bool(self.ledger.open_requests())


CHECKS = (ShutsDown, NoExceptionEscapes, Answers)
