"""Right connectors of other designs are not accused, and every core rule is put to the test."""

from __future__ import annotations

import pytest

from kvconform.conformance.check import Options, check_connector
from kvconform.conformance.verdict import EXIT_FAILED, EXIT_OK, exit_code
from kvconform.connectors.zoo.books import SavesAsItGoes
from kvconform.connectors.zoo.preemption import SavesInBackground
from kvconform.engine import compat
from kvconform.scenario.target import Target
from tests.conformance.groups import InGroups, InGroupsInBackground
from tests.conformance.right import (
    InBackground,
    KeepsAll,
    LayerByLayer,
    OneTooMany,
    PartOfABlock,
    right,
)
from tests.rules.targets import wrong_target


@pytest.mark.parametrize(
    "target",
    [
        right(KeepsAll),
        right(PartOfABlock),
        # What some members of the zoo are mutants of.
        wrong_target(SavesAsItGoes, keeps=False),
        wrong_target(SavesInBackground, keeps=False),
    ],
    ids=lambda target: target.name,
)
def test_right_as_well(target: Target) -> None:
    assert check_connector(target, Options(examples=16)).findings == []


@pytest.mark.parametrize("cls", [LayerByLayer, InBackground])
def test_right(cls: type) -> None:
    checked = check_connector(right(cls), Options(examples=100))
    assert [f.violation for f in checked.findings] == []
    assert checked.verdict.vacuous == []
    assert exit_code(checked.verdict) == EXIT_OK


@pytest.mark.skipif(not compat.supports("window", 24), reason="this vLLM has one KV group")
@pytest.mark.parametrize("cls", [InGroups, InGroupsInBackground])
def test_right_with_several_groups(cls: type) -> None:
    checked = check_connector(right(cls), Options(examples=30, shape={"window": 24}))
    assert [f.violation for f in checked.findings] == []
    assert "hma" in checked.features
    assert checked.verdict.of("KVC-501").reached


def test_wrong() -> None:
    checked = check_connector(right(OneTooMany), Options(examples=40, shrink_runs=40))
    assert checked.verdict.of("KVC-102").result == "fail"
    assert exit_code(checked.verdict) == EXIT_FAILED


def test_a_lookup_may_find_more_while_a_request_waits() -> None:
    """A save that the scheduler half has not been told of yet may be found all the same."""
    shape = {"async_scheduling": True, "engines": 1}
    checked = check_connector(right(LayerByLayer), Options(examples=60, seed=3, shape=shape))
    assert [f.violation for f in checked.findings] == []
