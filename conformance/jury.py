"""Who judges a run: a referee for what vLLM calls, and in a composition one for each child.

A child sees the contract that it would see alone. So it is judged alone: of what it was asked,
answered and reported, and of its own transfers, and of nothing that its siblings did. What no child
is to blame for, and is wrong as a whole, is the composition's.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Collection

from kvconform.conformance.checks import ALL, OF_A_CHILD, OF_A_COMPOSITION
from kvconform.conformance.ledger import Ledger
from kvconform.conformance.referee import Referee
from kvconform.engine.compose import MULTI, place_of
from kvconform.scenario.shape import Shape
from kvconform.scenario.target import Target
from kvconform.scenario.trace import Event, Kind
from kvconform.scenario.violation import Side, Violation

_OF_THE_WHOLE = frozenset(
    {Kind.HOOK, Kind.RAISED, Kind.ANSWERED, Kind.ADMITTED, Kind.RAN, Kind.OUTPUT, Kind.WRONG_KV,
     Kind.PLANNED, Kind.OBSERVED, Kind.WIRE, Kind.BROKE, Kind.COMMON, Kind.RESTED, Kind.LOG,
     Kind.DEVICE}
)  # fmt: skip
"""What a child is told in words of its own, or not at all."""

_ITS_OWN = frozenset({"KVC-010", "KVC-011", "KVC-801", "KVC-802", "KVC-806", "KVC-807"})
"""Broken by a composition, these are its own fault: what its children raise and answer is known."""

COMPANION = "companion"
"""How fingerprints name what stands beside the target."""


class View:
    """What one child of a composition would have seen, had it been alone."""

    def __init__(self, child: int, referee: Referee) -> None:
        self.child = child
        self.referee = referee
        self._hands_over: set[str | None] = set()

    def hear(self, event: Event) -> None:
        """Take an event in, if it is one for this child."""
        data = event.data
        if event.kind is Kind.CHILD:
            if data["child"] == self.child:
                own = {k: v for k, v in data.items() if k not in ("child", "as")}
                if own.get("params"):
                    self._hands_over.add(event.request)
                self.referee.hear(dataclasses.replace(event, kind=Kind(data["as"]), data=own))
        elif self._is_for_all(event):
            self.referee.hear(event)

    def _is_for_all(self, event: Event) -> bool:
        if event.kind is Kind.WIRE:  # params that reach the other engine changed
            return event.data["problem"] == "params" and event.request in self._hands_over
        if event.kind is Kind.LEFT:
            return bool(event.data["what"] == "request")
        if event.kind in _OF_THE_WHOLE:
            return False
        return event.data.get("child", self.child) == self.child


class Jury:
    """Judges one run.

    Args:
        target: the connector under test.
        shape: the run's.
        vllm: the version that it runs on.

    Attributes:
        whole: who judges what vLLM calls.
        views: what each child sees; empty where there is no composition.
    """

    def __init__(self, target: Target, shape: Shape, vllm: str) -> None:
        self.place = place_of(shape)
        beside = self.place is not None
        composed = beside or target.children
        found_alone = set(target.features) - {"keeps"}  # a composition asks for the first hit
        name = MULTI.partition(":")[2] if beside else target.class_name
        tolerant = target.tolerant
        has: Collection[str] = found_alone if composed else target.features
        checks = OF_A_COMPOSITION if composed else ALL
        self.whole = Referee(name, shape, vllm, has, checks, tolerant)
        self.views = []
        for child in range(2 if beside else target.children):
            mine = child == self.place or not beside
            name = target.class_name if mine else COMPANION
            has = target.features if mine else found_alone
            self.views.append(View(child, Referee(name, shape, vllm, has, OF_A_CHILD, tolerant)))
        self._objector: Referee | None = None

    @property
    def ledger(self) -> Ledger:
        """The facts of what vLLM calls."""
        return self.whole.ledger

    @property
    def violation(self) -> Violation | None:
        """The first objection; it ends the run."""
        if self._objector is None or self._objector.violation is None:
            return None
        found = self._objector.violation
        if self._objector is self.whole and self.place is not None and _is_kvc(found):
            side: Side = "vLLM" if found.fingerprint.rule in _ITS_OWN else "composition"
            return dataclasses.replace(
                found, fingerprint=dataclasses.replace(found.fingerprint, side=side)
            )
        return found

    def hear(self, event: Event) -> None:
        """Take an event in; children first, for what they do wrong shows in the whole."""
        if self._objector is not None:
            self._objector.hear(event)
            return
        for view in self.views:
            view.hear(event)
            if view.referee.over():
                self._objector = view.referee
                return
        self.whole.hear(event)
        if self.whole.over():
            self._objector = self.whole

    def over(self) -> bool:
        """Whether somebody has objected."""
        return self._objector is not None

    def conclude(self) -> None:
        """The run has ended: what nobody objected to may be vLLM's."""
        if self._objector is None:
            self.whole.conclude()
            if self.whole.over():
                self._objector = self.whole

    def reached(self) -> Counter[str]:
        """Per rule, how often it was provoked, for whom it is asked."""
        whole = self.whole.reached()
        if self.place is None:
            for view in self.views:
                whole["KVC-805"] += view.referee.reached()["KVC-805"]
            return whole
        own = self.views[self.place].referee.reached()
        return Counter({r: n for r, n in whole.items() if r.startswith("VLL")}) + own


def _is_kvc(violation: Violation) -> bool:
    return violation.fingerprint.rule.startswith("KVC")
