"""Each rule is found by exploration on a wrong connector, on its side, and not on the right one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from kvconform.conformance.check import Options, check_connector
from kvconform.conformance.rules import APART, BY_ID, RULES
from kvconform.connectors.targets.resolve import resolve
from kvconform.faults.packages import NAMES
from kvconform.scenario.violation import Side
from tests.rules.targets import ASCEND, wrong_target
from tests.rules.wrong import COMPOSED, WRONG

LOADS = frozenset({"full-hit", "delay"})
"""What most packages build on: something outside to load, and transfers that stay open."""

SHAPES: Mapping[str, Mapping[str, Any]] = {
    "KVC-105": {"num_blocks": 8},  # so that requests find no room, and are looked up again
    "KVC-401": {"num_blocks": 10, "topology": "store"},  # so that blocks soon have another owner
    "KVC-406": {"num_blocks": 8},  # so that requests are aborted before they find room
    "KVC-407": {"num_blocks": 8},  # so that requests are preempted
    "KVC-604": {"window": 24},
    "KVC-803": {"window": 24},
    "KVC-804": {"window": 24},
    "KVC-907": {"async_scheduling": True},  # so that a step runs before the last is processed
    "KVC-805": {"beside": "after", "topology": "store"},
}

HALF: Mapping[str, Side] = {
    "KVC-010": "scheduler half",
    "KVC-011": "worker half",
    "KVC-401": "scheduler half",
    "KVC-404": "scheduler half",
    "KVC-501": "scheduler half",
    "KVC-802": "scheduler half",
    "KVC-804": "scheduler half",
}
"""Where a rule may be owed by either half, the one that the wrong connector has wrong."""

EXAMPLES = 24

RARE: Mapping[str, int] = {"KVC-108": 80, "KVC-406": 80, "KVC-407": 80}
"""Rules that it takes longer to break."""


def options(rule_id: str) -> Options:
    """A short check with the packages that provoke the rule, and those that they build on."""
    packages, shape = BY_ID[rule_id].packages, SHAPES.get(rule_id, {})
    apart = packages <= APART | {"restart"} and packages & APART
    faults = APART | {"full-hit"} if apart else packages - APART | LOADS
    examples = RARE.get(rule_id, EXAMPLES)
    return Options(faults=faults, shape=shape, examples=examples, seed=1, shrink_runs=5)


DIFFERENT = {repr((sorted(o.faults), dict(o.shape))): o for o in map(options, sorted(WRONG))}

ALL_WRONG = {rule_id: wrong_target(cls) for rule_id, cls in WRONG.items()} | {
    rule_id: resolve(f"zoo:{name}") for rule_id, name in COMPOSED.items()
}


def test_there_is_a_wrong_connector_for_each_rule_that_a_run_can_break() -> None:
    # Those of devices are in tests/device; what vLLM owes is broken by schedulers, and by itself.
    wanted = {r.id for r in RULES if r.packages and r.side != "vLLM"}
    assert set(ALL_WRONG) == {name for name in wanted if "device" not in BY_ID[name].features}


@pytest.mark.parametrize("rule_id", sorted(ALL_WRONG))
def test_fires(rule_id: str) -> None:
    found = check_connector(ALL_WRONG[rule_id], options(rule_id)).verdict.of(rule_id)
    assert found.result == "fail", found.reason
    assert all(f.confirmed for f in found.findings)
    side = HALF.get(rule_id, found.rule.side)
    assert {f.violation.fingerprint.side for f in found.findings} == {side}


@pytest.mark.parametrize("same", DIFFERENT.values(), ids=DIFFERENT)
def test_is_silent_on_the_reference_connector(same: Options) -> None:
    findings = check_connector(ASCEND, same).findings
    assert [f.violation for f in findings if f.violation.fingerprint.side != "vLLM"] == []


def test_all_packages_are_known() -> None:
    assert {p for r in RULES for p in r.packages} <= set(NAMES)
