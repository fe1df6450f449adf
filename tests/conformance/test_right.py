"""Right connectors of other designs are not accused, and every core rule is put to the test."""

from __future__ import annotations

import pytest

from kvconform.conformance.check import Options, check_connector
from kvconform.conformance.verdict import EXIT_FAILED, EXIT_OK, exit_code
from kvconform.scenario.target import Target
from tests.conformance.right import InBackground, LayerByLayer, OneTooMany


def target(cls: type) -> Target:
    return Target(cls.__name__, f"{cls.__module__}:{cls.__name__}", extra={"store": "{run}"})


@pytest.mark.parametrize("cls", [LayerByLayer, InBackground])
def test_right(cls: type) -> None:
    checked = check_connector(target(cls), Options(examples=100))
    assert [f.violation for f in checked.findings] == []
    assert checked.verdict.vacuous == []
    assert exit_code(checked.verdict) == EXIT_OK


def test_wrong() -> None:
    checked = check_connector(target(OneTooMany), Options(examples=40, shrink_runs=40))
    assert checked.verdict.of("KVC-102").result == "fail"
    assert exit_code(checked.verdict) == EXIT_FAILED


def test_a_lookup_may_find_more_while_a_request_waits() -> None:
    """A save that the scheduler half has not been told of yet may be found all the same."""
    shape = {"async_scheduling": True, "engines": 1}
    checked = check_connector(target(LayerByLayer), Options(examples=60, seed=3, shape=shape))
    assert [f.violation for f in checked.findings] == []
