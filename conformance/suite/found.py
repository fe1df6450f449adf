"""From a verdict on a rule to the outcome of its test."""

from __future__ import annotations

from typing import Protocol

import pytest

from kvconform.conformance.rules import RULES

RULE_IDS = [rule.id for rule in RULES]


class Found(Protocol):
    """The verdict on one rule, as a test needs it."""

    @property
    def status(self) -> str:
        """``passed``, ``failed``, ``broken`` (neither kept nor broken) or ``skipped``."""

    @property
    def text(self) -> str:
        """Why it did not pass."""


class Unproven(Exception):  # noqa: N818 (a state of knowledge; pytest shows the name)
    """The rule was not put to the test, or not twice the same: no pass, and no failure either."""


class KnownFailureWarning(UserWarning):
    """An entry of the known failures is not what it was: remove it, or mend the fault."""


def hold(found: Found) -> None:
    """End the test as the verdict says.

    Raises:
        Unproven: the rule is vacuous or inconclusive.
    """
    match found.status:
        case "failed":
            pytest.fail(found.text, pytrace=False)
        case "broken":
            raise Unproven(found.text)
        case "skipped":
            pytest.skip(found.text)
