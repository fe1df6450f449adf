"""One test for each rule of the catalogue.

The check itself runs once, before the tests are handed out (see ``cli/pytest_plugin.py``); so the
results are the same for every ``-n``.
"""

from __future__ import annotations

import pytest

from kvconform.conformance.suite.found import RULE_IDS, Found, hold


@pytest.mark.parametrize("rule", RULE_IDS)
def test_rule(rule: str, kvc_found: Found) -> None:
    """The target keeps this rule, and the rule was put to the test."""
    hold(kvc_found)


def test_process_survives(kvc_found: Found) -> None:
    """The target took no process down."""
    hold(kvc_found)
