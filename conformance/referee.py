"""Hears every event, asks the checks, and keeps what they object to."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Sequence

from kvconform.conformance.checks import ALL, OF_A_CHILD, Check
from kvconform.conformance.ledger import Ledger
from kvconform.conformance.rules import BY_ID
from kvconform.scenario.shape import Shape
from kvconform.scenario.target import DECLARED
from kvconform.scenario.trace import Event, Kind
from kvconform.scenario.violation import Violation

_EARS: dict[type[Check], tuple[str, ...]] = {
    check: tuple(name for name in dir(check) if name.startswith("on_"))
    for check in {*ALL, *OF_A_CHILD}
}

_LAST_WORDS = {Kind.LEFT: "stuck", Kind.RESTED: "never_woke"}
"""Evidence that is judged only when a run has ended and nobody has objected to anything."""


class Referee:
    """Judges one run.

    Args:
        target_class: the class under test, for fingerprints.
        shape: the run's.
        vllm: the version that it runs on; objections with rules that are not of it are dropped.
        features: what the target declares; the same for rules that need more to be declared.
        checks: who may object. Where they are those of a child, vLLM's own rules are not judged.
        tolerant: rules that are read tolerantly.

    Attributes:
        ledger: the facts, derived from events.
        violation: the first objection; it ends the run.
    """

    def __init__(
        self,
        target_class: str,
        shape: Shape,
        vllm: str = "",
        features: Collection[str] = DECLARED,
        checks: Sequence[type[Check]] = ALL,
        tolerant: Collection[str] = (),
    ) -> None:
        self.ledger = Ledger(shape)
        self.violation: Violation | None = None
        self.checks: list[Check] = [c(self.ledger, target_class, self._object) for c in checks]
        for check in self.checks:
            check.tolerant = frozenset(tolerant)
        self._ears: dict[str, list[Callable[[Event], None]]] = defaultdict(list)
        for check in self.checks:
            for name in _EARS[type(check)]:
                self._ears[name[3:]].append(getattr(check, name))
        self._vllm = vllm
        self._judges_vllm = checks is not OF_A_CHILD
        self._undeclared = DECLARED - set(features)
        self._last_words: dict[str, Event] = {}

    def hear(self, event: Event) -> None:
        """Take an event in and let the checks judge it."""
        if self.violation is not None and event.kind in (Kind.BROKE, Kind.RAISED):
            data = event.data
            self.violation = self.violation.with_consequence(
                f"vLLM: {data['error']} {data['message']}".rstrip()
                + f" at {data['where']}, line {data['line']}: {data['source']}"
            )
            return
        if event.kind in _LAST_WORDS:
            self._last_words.setdefault(_LAST_WORDS[event.kind], event)
        self.ledger.hear(event)
        for ear in self._ears[event.kind]:
            ear(event)
        self.ledger.settle(event)

    def over(self) -> bool:
        """Whether somebody has objected."""
        return self.violation is not None

    def conclude(self) -> None:
        """The run has ended: what nobody objected to may be vLLM's."""
        for words in _LAST_WORDS.values():
            if self.violation is None and words in self._last_words:
                for ear in self._ears[words]:
                    ear(self._last_words[words])

    def reached(self) -> Counter[str]:
        """Per rule, how often it was provoked."""
        counts: Counter[str] = Counter()
        for check in self.checks:
            counts[check.rule] += check.reached
        return counts

    def _object(self, violation: Violation) -> None:
        rule = BY_ID[violation.fingerprint.rule]
        holds = rule.holds_for(self._vllm) and not rule.features & self._undeclared
        holds &= self._judges_vllm or not rule.id.startswith("VLL")
        if self.violation is None and holds:
            self.violation = violation
