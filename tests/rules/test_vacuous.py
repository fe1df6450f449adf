"""A rule whose fault packages are excluded ends vacuous; with all of them it passes."""

from __future__ import annotations

import functools

import pytest

from kvconform.conformance.check import Checked, Options, check_connector
from kvconform.conformance.rules import RULES, Rule
from kvconform.connectors.targets.resolve import resolve
from kvconform.faults.packages import NAMES

PROVOKED = [r for r in RULES if r.packages]


@functools.cache
def checked(faults: frozenset[str]) -> Checked:
    return check_connector(resolve("ascend"), Options(faults=faults, examples=40, shrink_runs=20))


@pytest.mark.parametrize("rule", PROVOKED, ids=lambda r: r.id)
def test_without_its_packages_a_rule_is_vacuous(rule: Rule) -> None:
    packages = frozenset(NAMES) - rule.packages
    verdict = checked(packages).verdict
    found = verdict.of(rule.id)
    assert found.result == "vacuous"
    assert found.reached == 0
    assert verdict.result == "inconclusive"


@pytest.mark.parametrize("rule", PROVOKED, ids=lambda r: r.id)
def test_with_all_packages_it_passes(rule: Rule) -> None:
    found = checked(frozenset(NAMES)).verdict.of(rule.id)
    assert found.result == "pass"
    assert found.reached > 0
