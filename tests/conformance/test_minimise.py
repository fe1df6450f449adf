"""The minimiser by itself: small, deterministic, bounded, never adrift."""

from __future__ import annotations

from hypothesis import given, settings

from kvconform.conformance.minimise import Minimiser, simpler
from kvconform.scenario.actions import Abort, Arrive, Hold, Step
from kvconform.scenario.prompt import Prompt
from kvconform.scenario.scenario import Scenario
from kvconform.scenario.shape import Shape
from tests.strategies import actions

BIG = Scenario(
    Shape(tp=2, engines=2, num_blocks=10),
    (
        *(Arrive(Prompt(2, 33, 4), 5, "a", 1),) * 3,
        Hold("load", 1),
        Step(2),
        Step(3),
        Abort(2, True),
        Arrive(Prompt(1, 60), 9),
    ),
)


def needs_long_prompt_and_steps(scenario: Scenario) -> bool:
    long = any(isinstance(a, Arrive) and a.prompt.num_tokens >= 20 for a in scenario.actions)
    return long and sum(a.count for a in scenario.actions if isinstance(a, Step)) >= 4


def test_shrinks_to_what_matters() -> None:
    small = Minimiser(needs_long_prompt_and_steps).shrink(BIG)
    assert small.shape == Shape()
    assert needs_long_prompt_and_steps(small)
    assert len(small.actions) == 2
    (step,) = (a for a in small.actions if isinstance(a, Step))
    (arrive,) = (a for a in small.actions if isinstance(a, Arrive))
    assert step == Step(4)
    assert arrive.max_tokens == 1
    assert arrive.prompt.num_tokens == 20


def test_is_deterministic() -> None:
    assert Minimiser(needs_long_prompt_and_steps).shrink(BIG) == Minimiser(
        needs_long_prompt_and_steps
    ).shrink(BIG)


def test_is_bounded_and_keeps_what_it_has() -> None:
    tried: list[Scenario] = []

    def fails(scenario: Scenario) -> bool:
        tried.append(scenario)
        return needs_long_prompt_and_steps(scenario)

    small = Minimiser(fails, max_runs=7).shrink(BIG)
    assert len(tried) == 7
    assert needs_long_prompt_and_steps(small)


def test_fixed_fields_of_the_shape_stay() -> None:
    small = Minimiser(needs_long_prompt_and_steps, fixed=frozenset({"tp"})).shrink(BIG)
    assert small.shape == Shape(tp=2)


@given(actions())
@settings(derandomize=True, database=None, print_blob=True)
def test_simpler_actions_end(action: Arrive) -> None:
    seen = {action}
    todo = [action]
    while todo:
        for one in simpler(todo.pop()):
            assert isinstance(one, type(action))
            if one not in seen:
                seen.add(one)
                todo = [one]  # follow the simplest only
                break
    assert len(seen) < 200
