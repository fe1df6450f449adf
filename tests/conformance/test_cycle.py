"""The life cycle: the table, the walk through it with the reference connector, the page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvconform.cli.show import states_page
from kvconform.conformance import steer
from kvconform.conformance.cycle import CAUSES, PAIRS, REACHED, STATES, WAYS, State
from kvconform.conformance.run import Run
from kvconform.faults.packages import is_tight
from kvconform.scenario.prompt import Prompt
from kvconform.scenario.shape import Shape
from tests.rules.targets import ASCEND

DOCS = Path(__file__).resolve().parents[2] / "docs"
PROMPT = Prompt(7, 40)
SHAPES = (
    Shape(num_blocks=12),
    Shape(tp=2, load_failure_policy="fail"),
    Shape(topology="pd", engines=2),
)


def test_every_state_is_on_a_way() -> None:
    assert {way.state for way in WAYS} | {way.to for way in WAYS} == set(STATES)
    assert {way.event for way in WAYS} == set(CAUSES)
    assert {way.state for way in WAYS} == set(STATES)  # none is a dead end: an id comes again


def test_recipes_follow_the_table() -> None:
    ways = {(r.state, r.to) for r in (*steer.RECIPES, *steer.FRESH)}
    by_way_of_a_match = {(a, c) for a, b in REACHED if b == "matched" for d, c in REACHED if d == b}
    assert ways <= REACHED | by_way_of_a_match


def test_the_page_is_up_to_date() -> None:
    assert (DOCS / "life-cycle.md").read_text(encoding="utf-8") == states_page()


def state_of(run: Run) -> tuple[State, str]:
    """Where the latest request is, and how far its transfers are."""
    facts = list(run.referee.ledger.requests.values())[-1]
    return facts.state, facts.phase


@settings(
    max_examples=40, database=None, derandomize=True, print_blob=False, deadline=None,
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
@given(st.data())
def test_a_walk(data: Any) -> None:
    shape = Shape(tp=data.draw(st.sampled_from((1, 2))))
    with Run(ASCEND, shape) as run:
        for action in (*steer.outside(PROMPT, shape), *steer.begin(PROMPT, shape)):
            assert run.do(action)
        at: State = "waiting"
        left = 12  # each way takes a step or two of its output
        while left and (ways := [r for r in steer.RECIPES if r.state == at]):
            left -= 1
            recipe = data.draw(st.sampled_from(ways))
            for action in recipe.actions:
                assert run.do(action)
            assert state_of(run)[0] == recipe.to, recipe
            at = recipe.to
        run.verify()


def can_be_met(state: State, phase: str, shape: Shape) -> bool:
    """Whether the reference connector gets there, with this shape."""
    if (state, phase) == ("running", "under way"):
        return False  # it saves what has ended
    if phase == "some ranks" and shape.ranks == 1:
        return False
    if state == "matched":
        return is_tight(shape)
    # Where it decodes, nothing is saved, or looked up in the store.
    return shape.topology == "store" or state not in ("kept", "deferred")


AIMS = [(*pair, shape) for pair in PAIRS for shape in SHAPES if can_be_met(*pair, shape)]


@pytest.mark.parametrize(("state", "phase", "shape"), AIMS, ids=str)
def test_what_is_aimed_at_is_met(state: State, phase: Any, shape: Shape) -> None:
    with Run(ASCEND, shape) as run:
        for action in steer.path(state, phase, PROMPT, shape):
            assert run.do(action)
        assert state_of(run) == (state, phase)
