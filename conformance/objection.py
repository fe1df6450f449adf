"""A violation as an exception, for tests."""

from __future__ import annotations

from kvconform.scenario.violation import Violation


class ViolationError(AssertionError):
    """A rule was broken; each fingerprint has a class of its own, so shrinking stays with it."""

    def __init__(self, violation: Violation) -> None:
        self.violation = violation
        fingerprint = violation.fingerprint
        text = (
            f"[{fingerprint.rule}] {fingerprint.side}: {fingerprint.kind}\n"
            f"expected {violation.expected}\ngot {violation.got}"
        )
        super().__init__("\n".join(filter(None, (text, violation.why, violation.consequence))))


_classes: dict[str, type[ViolationError]] = {}


def error_for(violation: Violation) -> ViolationError:
    """The exception for a violation, of its fingerprint's own class."""
    fingerprint = violation.fingerprint
    name = f"{fingerprint.rule.replace('-', '')}_{fingerprint.id}"
    return _classes.setdefault(name, type(name, (ViolationError,), {}))(violation)
