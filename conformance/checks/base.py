"""What every check has: its rule, the ledger, how often it was provoked, and a way to object."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from kvconform.conformance.ledger import Ledger
from kvconform.conformance.rules import BY_ID
from kvconform.scenario.trace import Event
from kvconform.scenario.violation import Fingerprint, Side, Violation


class Check:
    """Watches events for one rule.

    Methods named ``on_<kind>`` are called with each event of that kind, after the ledger took in
    what it tells and before it settled what follows.

    Attributes:
        rule: id of the rule.
        also: ids that the check may object with as well, when the evidence points there.
        reached: how often the rule was provoked in this run.
        tolerant: rules that this run reads tolerantly.
    """

    rule: ClassVar[str]
    also: ClassVar[tuple[str, ...]] = ()
    tolerant: frozenset[str] = frozenset()

    def __init__(
        self, ledger: Ledger, target: str, object_with: Callable[[Violation], None]
    ) -> None:
        self.ledger = ledger
        self.target = target
        self.reached = 0
        self._object = object_with

    def fail(
        self,
        event: Event,
        kind: str,
        *,
        expected: str,
        got: str,
        why: str = "",
        where: str = "",
        side: Side | None = None,
        rule: str | None = None,
        request: str | None = None,
        unsettled: tuple[str, ...] = (),
    ) -> None:
        """Object to what ``event`` tells.

        Args:
            event: the evidence.
            kind: the way in which the rule was broken; part of the fingerprint, so no names or
                numbers.
            expected: what the contract asks for.
            got: what happened.
            why: what follows from it.
            where: raising module and function, or the hook; part of the fingerprint.
            side: who owes it, when it is not the one that the rule names.
            rule: another rule than the check's own (one of ``also``).
            request: the request concerned, when the event does not say.
            unsettled: what may still set it right, where we cannot see it.
        """
        rule = rule or self.rule
        reading = BY_ID[rule].tolerant if rule in self.tolerant else None
        if reading is not None and kind in reading.kinds:
            return
        self._object(
            Violation(
                Fingerprint(rule, side or BY_ID[rule].side, self.target, kind, where),
                expected,
                got,
                why,
                request or event.request,
                max(event.engine, 0),
                event.step,
                unsettled=(*event.data.get("restless", ()), *unsettled),
            )
        )
