"""One test for each rule of the catalogue that the target owes.

The check itself runs once, before the tests are handed out (see ``cli/pytest_plugin.py``); so the
results are the same for every ``-n``.
"""

from __future__ import annotations

from typing import Any

import pytest

from kvconform.conformance.rules import RULES


@pytest.mark.parametrize("rule", [r.id for r in RULES if r.id.startswith("KVC")])
def test_rule(rule: str, kvc_verdict: dict[str, Any]) -> None:
    """The target keeps this rule, and the rule was put to the test."""
    found = kvc_verdict["rules"][rule]
    match found["result"]:
        case "fail" | "inconclusive":
            pytest.fail("\n".join(found["faults"]) or found["reason"], pytrace=False)
        case "vacuous":
            pytest.fail(f"[{rule}] vacuous: {found['reason']}", pytrace=False)
        case "not_supported" | "untested":
            pytest.skip(found["reason"] or found["result"])


def test_process_survives(kvc_verdict: dict[str, Any]) -> None:
    """The target took no process down."""
    if kvc_verdict["deaths"]:
        pytest.fail("\n".join(kvc_verdict["deaths"]), pytrace=False)
