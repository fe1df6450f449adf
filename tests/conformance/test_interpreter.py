"""The interpreter is total, and equal scenarios give equal runs."""

from __future__ import annotations

from hypothesis import given, settings

from kvconform.conformance.run import play
from kvconform.connectors.targets.resolve import resolve
from kvconform.scenario.actions import Abort, Arrive, Release, Step
from kvconform.scenario.prompt import Prompt
from kvconform.scenario.scenario import Scenario
from kvconform.scenario.shape import Shape
from kvconform.scenario.trace import Kind
from tests.strategies import scenarios

ASCEND = resolve("ascend")


@given(scenarios())
@settings(max_examples=60, derandomize=True, database=None, print_blob=True, deadline=None)
def test_every_list_of_actions_is_a_scenario(scenario: Scenario) -> None:
    outcome = play(ASCEND, scenario)
    # The reference connector is right, so what is found is vLLM's own.
    assert outcome.violation is None or outcome.violation.fingerprint.side == "vLLM"
    if outcome.violation is None:
        actions = list(outcome.trace.of(Kind.ACTION))
        assert [e.data["index"] for e in actions] == list(range(len(scenario.actions)))


@given(scenarios())
@settings(max_examples=20, derandomize=True, database=None, print_blob=True, deadline=None)
def test_equal_scenarios_give_equal_traces(scenario: Scenario) -> None:
    one, two = play(ASCEND, scenario), play(ASCEND, scenario)
    # vLLM logs some lines only once in a process.
    assert [e.to_json() for e in one.trace.events if e.kind is not Kind.LOG] == [
        e.to_json() for e in two.trace.events if e.kind is not Kind.LOG
    ]


def test_actions_without_a_referent_are_recorded_and_do_nothing() -> None:
    outcome = play(
        ASCEND, Scenario(Shape(), (Abort(), Release(3), Step(5), Arrive(Prompt(0, 9), 0)))
    )
    actions = list(outcome.trace.of(Kind.ACTION))
    assert [e.data["effect"] for e in actions] == [False] * 4
    assert outcome.steps == 0


def test_selectors_count_from_the_latest() -> None:
    arrivals = tuple(Arrive(Prompt(k, 9), 5) for k in range(3))
    outcome = play(ASCEND, Scenario(Shape(), (*arrivals, Abort(0), Abort(5))))
    aborts = [e for e in outcome.trace.of(Kind.ACTION) if e.data["action"]["do"] == "abort"]
    assert [e.request for e in aborts] == ["r2", "r0"]
