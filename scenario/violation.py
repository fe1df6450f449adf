"""A rule broken, and what makes two violations the same."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, replace
from typing import Any, Literal

from kvconform.scenario.codec import decode, encode

Side = Literal["scheduler half", "worker half", "composition", "vLLM"]
"""Who owes it. ``vLLM`` findings never count against the target."""

RULE_ID = re.compile(r"(KVC|VLL)-\d{3}")


def is_rule_id(text: str) -> bool:
    """Whether ``text`` has the form of a rule id (``KVC-302``)."""
    return RULE_ID.fullmatch(text) is not None


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What makes two violations the same fault: no request ids, numbers or steps.

    Attributes:
        rule: id of the rule.
        side: who owes it.
        target: class name of the target.
        kind: the way in which the rule was broken.
        where: raising module and function, or the hook at which it was seen.
    """

    rule: str
    side: Side
    target: str
    kind: str
    where: str

    @property
    def id(self) -> str:
        """Ten hex digits, used as the name of the crash file."""
        text = "|".join((self.rule, self.side, self.target, self.kind, self.where))
        return hashlib.sha256(text.encode()).hexdigest()[:10]

    def __str__(self) -> str:
        return f"{self.rule} [{self.side}] {self.kind} at {self.where}"


_DEATHS = {"crash": "kills its process", "hang": "hangs", "memory": "eats the memory"}


def death_of(target: str, how: str, hook: str) -> Fingerprint:
    """The fingerprint of a process that a target took down.

    Args:
        target: its class name.
        how: ``crash``, ``hang`` or ``memory``.
        hook: half and name of the hook in which it did; empty: none was being called.
    """
    return Fingerprint("KVC-010", "composition", target, _DEATHS[how], hook or "process")


@dataclass(frozen=True, slots=True)
class Violation:
    """One observed breach of a rule.

    Attributes:
        fingerprint: the fault that this is an instance of.
        expected: what the contract asks for here.
        got: what happened.
        why: what follows from it, or why it matters.
        request: the request concerned, by ordinal (``r3``).
        engine: index of the engine.
        step: that engine's step.
        consequence: how vLLM itself reacted, with its line, when it did.
        unsettled: what may still have set it right, in real time: threads of the target, a clock.
    """

    fingerprint: Fingerprint
    expected: str
    got: str
    why: str = ""
    request: str | None = None
    engine: int = 0
    step: int = 0
    consequence: str = ""
    unsettled: tuple[str, ...] = ()

    def with_consequence(self, text: str) -> Violation:
        """The same violation, with vLLM's own reaction added."""
        return replace(self, consequence=text)

    def same_as(self, other: Violation | None) -> bool:
        """Whether a replay showed the same: fault, request and step; words may differ."""
        return other is not None and (
            (self.fingerprint, self.request, self.engine, self.step)
            == (other.fingerprint, other.request, other.engine, other.step)
        )

    def to_json(self) -> dict[str, Any]:
        """JSON data."""
        return encode(self)

    @staticmethod
    def from_json(data: Any, where: str = "violation") -> Violation:
        """A violation from JSON data (raises UsageError)."""
        return decode(Violation, data, where)
