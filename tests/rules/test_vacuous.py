"""A rule whose fault packages are excluded ends vacuous; with all of them it passes."""

from __future__ import annotations

from collections import defaultdict

import pytest

from kvconform.conformance.check import Options, check_connector
from kvconform.conformance.rules import RULES
from kvconform.conformance.verdict import Verdict
from kvconform.faults.packages import NAMES
from tests.rules.targets import ASCEND

GROUPS: defaultdict[frozenset[str], list[str]] = defaultdict(list)
for _rule in RULES:
    if _rule.packages and not _rule.features & {"children", "siblings", "device"}:
        GROUPS[_rule.packages].append(_rule.id)
"""Fault packages to the rules that these, and no others, provoke; but for those of compositions,
see ``test_composition``, and of devices, see ``tests/device``."""


def verdict(excluded: frozenset[str], examples: int) -> Verdict:
    faults = frozenset(NAMES) - excluded
    return check_connector(ASCEND, Options(faults=faults, examples=examples, shrink_runs=5)).verdict


@pytest.mark.parametrize("packages", GROUPS, ids=[" ".join(ids) for ids in GROUPS.values()])
def test_without_its_packages_a_rule_is_vacuous(packages: frozenset[str]) -> None:
    judged = verdict(packages, examples=30)
    found = {rule_id: judged.of(rule_id) for rule_id in GROUPS[packages]}
    assert {i: (f.result, f.reached) for i, f in found.items()} == dict.fromkeys(
        found, ("vacuous", 0)
    )
    assert all(f.reason for f in found.values())
    core = any(f.rule.level == "must" for f in found.values())
    assert judged.result == "inconclusive" or not core


def test_with_all_packages_every_rule_passes() -> None:
    judged = verdict(frozenset(), examples=60)
    provoked = [i for ids in GROUPS.values() for i in ids]
    results = {i: judged.of(i).result for i in provoked}
    assert results == dict.fromkeys(provoked, "pass")
    assert all(judged.of(i).reached for i in provoked)
