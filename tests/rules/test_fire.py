"""Each rule fires on a wrong connector, on the side that it names, and not on the right one."""

from __future__ import annotations

import pytest

from kvconform.conformance.check import Checked, Options, check_connector
from kvconform.conformance.rules import BY_ID, RULES
from kvconform.connectors.targets.resolve import resolve
from kvconform.faults.packages import NAMES
from kvconform.scenario.target import Target
from tests.rules.wrong import WRONG

ASCEND = resolve("ascend")


def test_there_is_a_wrong_connector_for_each_rule_that_a_run_can_break() -> None:
    assert set(WRONG) == {r.id for r in RULES if r.packages}


def checked(rule_id: str, target: Target) -> Checked:
    """Short checks with the packages that provoke the rule, until one of three finds it."""
    faults = BY_ID[rule_id].packages | {"full-hit", "delay"}
    for seed in (1, 2, 3):
        options = Options(level="L3", faults=faults, examples=30, seed=seed, shrink_runs=30)
        found = check_connector(target, options)
        if found.verdict.of(rule_id).findings:
            break
    return found


@pytest.mark.parametrize("rule_id", sorted(WRONG))
def test_fires(rule_id: str) -> None:
    cls = WRONG[rule_id]
    target = Target(
        cls.__name__, f"{cls.__module__}:{cls.__name__}", extra=ASCEND.extra, world="transport"
    )
    verdict = checked(rule_id, target).verdict.of(rule_id)
    assert verdict.result == "fail", verdict.reason
    assert all(f.confirmed for f in verdict.findings)
    side = BY_ID[rule_id].side
    if side != "composition":  # then the evidence tells which half
        assert {f.violation.fingerprint.side for f in verdict.findings} == {side}


@pytest.mark.parametrize("packages", sorted({tuple(sorted(BY_ID[r].packages)) for r in WRONG}))
def test_is_silent_on_the_reference_connector(packages: tuple[str, ...]) -> None:
    options = Options(faults=frozenset(packages), examples=30, seed=1, shrink_runs=10)
    findings = check_connector(ASCEND, options).findings
    assert [f for f in findings if f.violation.fingerprint.side != "vLLM"] == []


def test_all_packages_are_known() -> None:
    assert {p for r in RULES for p in r.packages} <= set(NAMES)
