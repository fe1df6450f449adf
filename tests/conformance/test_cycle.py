"""The life cycle: the table, the walk through it with the reference connector, the page."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvconform.cli.show import states_page
from kvconform.conformance import steer
from kvconform.conformance.cycle import CAUSES, PAIRS, REACHED, STATES, WAYS, Phase, State
from kvconform.conformance.run import Run
from kvconform.conformance.unreachable import holes, why
from kvconform.faults.packages import PACKAGES, is_tight
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
    return True


AIMS = [(*pair, shape) for pair in PAIRS for shape in SHAPES if can_be_met(*pair, shape)]


@pytest.mark.parametrize(("state", "phase", "shape"), AIMS, ids=str)
def test_what_is_aimed_at_is_met(state: State, phase: Any, shape: Shape) -> None:
    with Run(ASCEND, shape) as run:
        for action in steer.path(state, phase, PROMPT, shape):
            assert run.do(action)
        if shape.topology == "pd" and state == "kept":  # the leg that was prefilled
            assert (state, phase) in {(f.state, f.phase) for f in run.referee.ledger.alive()}
        else:
            assert state_of(run) == (state, phase)


ON_THE_HOST = tuple(package.name for package in PACKAGES if "device" not in package.orders)

WIDE = (
    *SHAPES,
    Shape(),
    Shape(num_blocks=12, tp=2),
    Shape(topology="pd", engines=2, tp=2),
    Shape(topology="pd", engines=2, num_blocks=12),
)


def test_what_was_met_most_seldom_is_aimed_at() -> None:
    wanted: list[steer.Cell] = [
        ("abort", "running", "-"), ("delay", "running", "-"), ("reset", "running", "-"),
    ]  # fmt: skip
    seen = Counter({"abort/running/-": 3, "reset/running/-": 1})
    assert [steer.rarest(wanted, seen, k)[0] for k in range(4)] == [
        "delay", "reset", "abort", "delay",
    ]  # fmt: skip


def test_of_what_was_never_met_each_comes_first_now_and_then() -> None:
    wanted = steer.in_reach(frozenset(ON_THE_HOST), "store", tight=True, ranks=2)
    first = {steer.rarest(wanted, Counter(others=n), 0) for n in range(20 * len(wanted))}
    assert first == set(wanted)


@pytest.mark.slow
def test_what_no_run_of_the_reference_connector_meets_has_a_reason() -> None:
    met: Counter[str] = Counter()
    for shape in WIDE:
        for name in ON_THE_HOST:
            for state, phase in PAIRS:
                with Run(ASCEND, shape) as run:
                    for action in (
                        *steer.path(state, phase, PROMPT, shape),
                        *steer.fault(name, PROMPT, shape),
                    ):
                        if not run.do(action):
                            break
                    outcome = run.outcome()
                assert outcome.violation is None, (shape, name, state, phase)
                met.update({"/".join(cell): n for cell, n in outcome.coverage.items()})
    left = holes(met, ON_THE_HOST, ASCEND.class_name)
    assert [hole for hole in left if not hole.why] == []
    # And what is said to be out of reach is.
    closed = [
        "/".join((name, *pair))
        for name in ON_THE_HOST for pair in PAIRS if why(name, pair, ASCEND.class_name)
    ]  # fmt: skip
    assert sorted(closed) == sorted("/".join((h.fault, h.state, h.phase)) for h in left)


def test_reasons_of_one_class_are_not_those_of_another() -> None:
    pair: tuple[State, Phase] = ("running", "under way")
    assert why("abort", pair, "AscendConnector")
    assert why("abort", pair, "Another") == why("abort", pair) == ""
    assert why("lost", ("waiting", "-"), "Another")
