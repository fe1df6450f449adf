"""Hears every event, asks the checks, and keeps what they object to."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable

from kvconform.conformance.checks import ALL, Check
from kvconform.conformance.ledger import Ledger
from kvconform.scenario.shape import Shape
from kvconform.scenario.trace import Event, Kind
from kvconform.scenario.violation import Violation

_EARS: dict[type[Check], tuple[str, ...]] = {
    check: tuple(name for name in dir(check) if name.startswith("on_")) for check in ALL
}


class Referee:
    """Judges one run.

    Attributes:
        ledger: the facts, derived from events.
        violation: the first objection; it ends the run.
    """

    def __init__(self, target_class: str, shape: Shape) -> None:
        self.ledger = Ledger(shape)
        self.violation: Violation | None = None
        self.checks: list[Check] = [c(self.ledger, target_class, self._object) for c in ALL]
        self._ears: dict[str, list[Callable[[Event], None]]] = defaultdict(list)
        for check in self.checks:
            for name in _EARS[type(check)]:
                self._ears[name[3:]].append(getattr(check, name))
        self._left: list[Event] = []

    def hear(self, event: Event) -> None:
        """Take an event in and let the checks judge it."""
        if self.violation is not None and event.kind in (Kind.BROKE, Kind.RAISED):
            data = event.data
            self.violation = self.violation.with_consequence(
                f"vLLM: {data['error']} {data['message']}".rstrip()
                + f" at {data['where']}, line {data['line']}: {data['source']}"
            )
            return
        if event.kind is Kind.LEFT:
            self._left.append(event)
        self.ledger.hear(event)
        for ear in self._ears[event.kind]:
            ear(event)
        self.ledger.settle(event)

    def over(self) -> bool:
        """Whether somebody has objected."""
        return self.violation is not None

    def conclude(self) -> None:
        """The run has ended: something left over that nobody objected to is vLLM's."""
        if self.violation is None and self._left:
            for ear in self._ears["stuck"]:
                ear(self._left[0])

    def reached(self) -> Counter[str]:
        """Per rule, how often it was provoked."""
        counts: Counter[str] = Counter()
        for check in self.checks:
            counts[check.rule] += check.reached
        return counts

    def _object(self, violation: Violation) -> None:
        if self.violation is None:
            self.violation = violation
