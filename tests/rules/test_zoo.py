"""Each zoo member is found by the family that its defect belongs to, on the side that owes it."""

from __future__ import annotations

import pytest

from kvconform.conformance.check import Options, check_connector
from kvconform.connectors.targets.resolve import resolve
from kvconform.scenario.violation import Side

FAMILY = {
    "zoo:full-hit-report": "KVC-302",
    "zoo:leak-on-abort": "KVC-304",
    "zoo:wrong-block": "KVC-501",
    "zoo:late-failure": "KVC-601",
    "zoo:double-completion": "KVC-303",
    "zoo:lease-ignored": "KVC-603",
}
SIDE: dict[str, Side] = {"zoo:wrong-block": "scheduler half"}
"""Where the rule may be owed by either half."""


@pytest.mark.parametrize("seed", [1])
@pytest.mark.parametrize("name", FAMILY)
def test_is_found(name: str, seed: int) -> None:
    checked = check_connector(resolve(name), Options(seed=seed, examples=24, shrink_runs=10))
    verdict = checked.verdict.of(FAMILY[name])
    assert verdict.result == "fail"
    sides = {f.violation.fingerprint.side for f in verdict.findings}
    assert sides == {SIDE.get(name, verdict.rule.side)}
