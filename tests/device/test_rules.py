"""The rules of devices: broken by each mutant of the zoo that is for it, kept by the right one."""

from __future__ import annotations

import dataclasses

import pytest

from kvconform.conformance.check import Checked, Options, check_connector
from kvconform.conformance.invariants import expected
from kvconform.conformance.rules import RULES
from kvconform.connectors.targets.resolve import resolve, with_flags
from kvconform.connectors.zoo.catalogue import MUTANTS
from kvconform.connectors.zoo.mutant import Mutant
from kvconform.faults.devices import cann
from kvconform.faults.packages import NAMES

pytestmark = pytest.mark.skipif(cann.missing() is not None, reason=str(cann.missing()))

OF_DEVICES = [rule.id for rule in RULES if "device" in rule.features]
RIGHT = with_flags(resolve("ascend"), role=None, extra=None, device="ascend-sim")
WRONG = [m for m in MUTANTS if m.device == "ascend-sim" and not m.until]
FAULTS = frozenset({"slow-device", "full-hit", "delay"})


def check(name: str, examples: int = 24) -> Checked:
    target = resolve(f"zoo:{name}")
    return check_connector(
        target, Options(faults=FAULTS, examples=examples, shrink_runs=5, level="L3")
    )


@pytest.mark.parametrize("mutant", WRONG, ids=lambda mutant: mutant.name)
def test_a_mutant_is_noticed_by_a_rule_that_has_to(mutant: Mutant) -> None:
    findings = [f for f in check(mutant.name).findings if f.confirmed]
    rules = {f.violation.fingerprint.rule for f in findings}
    assert rules & (expected(mutant.breaks) | {*mutant.rules})
    assert {f.violation.fingerprint.side for f in findings} <= {mutant.side, "composition"}


def test_each_rule_is_broken_by_a_mutant() -> None:
    assert {rule for m in WRONG for rule in m.rules} >= set(OF_DEVICES)


def test_the_right_one_is_not_accused_and_all_is_provoked() -> None:
    packages = frozenset({*FAULTS, "abort", "tight-pool", "fail-copy", "restart"})
    checked = check_connector(RIGHT, Options(faults=packages, examples=40))
    assert [f.violation for f in checked.findings] == []
    results = {i: checked.verdict.of(i).result for i in OF_DEVICES}
    assert results == dict.fromkeys(OF_DEVICES, "pass")
    # Copies have failed, and were reported.
    assert checked.verdict.of("KVC-601").reached


def test_without_its_package_a_rule_is_vacuous() -> None:
    faults = frozenset(NAMES) - {"slow-device"}
    judged = check_connector(RIGHT, Options(faults=faults, examples=16)).verdict
    assert {i: judged.of(i).result for i in OF_DEVICES} == dict.fromkeys(OF_DEVICES, "vacuous")
    assert judged.result == "inconclusive"


def test_on_the_host_they_are_not_asked() -> None:
    target = dataclasses.replace(RIGHT, device="cpu")
    judged = check_connector(target, Options(level="L0")).verdict
    results = {i: judged.of(i).result for i in OF_DEVICES}
    assert results == dict.fromkeys(OF_DEVICES, "not_supported")
