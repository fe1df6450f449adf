"""Engines that die and start anew, and the world that outlives them."""

from __future__ import annotations

import dataclasses

import pytest

from kvconform.conformance.run import Outcome, Run, play
from kvconform.connectors.targets.resolve import resolve
from kvconform.engine import compat
from kvconform.scenario.actions import (
    Action,
    Arrive,
    Hold,
    Redeploy,
    Release,
    Reset,
    Restart,
    Step,
    Tick,
)
from kvconform.scenario.identity import Identity
from kvconform.scenario.prompt import Prompt
from kvconform.scenario.scenario import Scenario
from kvconform.scenario.shape import Shape
from kvconform.scenario.trace import Kind

ASCEND = resolve("ascend")
P = Prompt(0, 40)
APART = Shape(topology="pd", engines=2)


def played(*actions: Action, shape: Shape | None = None) -> Outcome:
    outcome = play(ASCEND, Scenario(shape or Shape(), actions))
    assert outcome.violation is None
    return outcome


def promises(outcome: Outcome) -> list[int]:
    """What each lookup answered, in tokens."""
    hooks = (e.data for e in outcome.trace.of(Kind.HOOK))
    return [h["answer"][0] for h in hooks if h["name"] == "get_num_new_matched_tokens"]


@pytest.mark.parametrize("clean", [False, True])
def test_requests_are_lost_and_what_was_saved_is_not(clean: bool) -> None:
    outcome = played(
        Arrive(P), Step(4), Arrive(Prompt(1, 40), 9), Step(2), Restart(clean=clean),
        Arrive(P, 2), Step(6),
    )  # fmt: skip
    (event,) = outcome.trace.of(Kind.RESTARTED)
    assert event.data["lost"] == ["r1"]
    assert promises(outcome)[-1] == 32
    assert {e.request for e in outcome.trace.of(Kind.TOKENS) if e.data["finish"]} == {"r0", "r2"}


def test_steps_and_epochs_go_on_counting() -> None:
    outcome = played(Arrive(P), Step(4), Restart(), Arrive(P), Step(2))
    steps = [e.step for e in outcome.trace.of(Kind.SCHEDULED)]
    assert steps == sorted(set(steps))


def test_what_the_dead_held_is_given_back_in_time() -> None:
    with Run(ASCEND, Shape()) as run:
        first: tuple[Action, ...] = (Hold("save"), Arrive(P), Step(3), Restart())
        for action in first:
            run.do(action)
        (event,) = run.trace.of(Kind.RESTARTED)
        assert event.data["orphans"] == 1
        again: tuple[Action, ...] = (Release(), Arrive(P), Step(4), Reset(), Arrive(P), Step(2))
        for action in again:
            run.do(action)
        assert promises(run.outcome())[-1] == 0  # their room is reserved for who has died
        for action in (Tick(11.0), *again):
            run.do(action)
        assert promises(run.outcome())[-1] == 32
        run.drain()
        assert run.violation is None


def test_nobody_reads_from_an_engine_that_has_died() -> None:
    outcome = played(
        Hold("load"), Arrive(P, 2), Step(2), Step(2, 1), Restart(), Arrive(Prompt(1, 60)), Step(2),
        Release(), Step(4, 1), shape=APART,
    )  # fmt: skip
    pulls = [e for e in outcome.trace.of(Kind.MOVED) if e.data["direction"] == "pull"]
    assert pulls[0].data["failed"] == pulls[0].data["blocks"]


def test_the_shape_is_another_one_afterwards() -> None:
    with Run(ASCEND, Shape()) as run:
        for action in (Arrive(P), Step(4), Redeploy("b", block_size=8), Arrive(P), Step(3)):
            run.do(action)
        assert run.referee.ledger.shape.block_size == 8
        assert run.referee.ledger.requests["r1"].identity == Identity(model="b")
        run.drain()
        assert run.violation is None


def test_what_another_model_prefilled_is_computed_anew() -> None:
    outcome = played(
        Hold("route"), Arrive(P, 3), Step(3), Redeploy("b"), Release(), Step(4, 1), Arrive(P, 2),
        Step(3), Step(4, 1), shape=APART,
    )  # fmt: skip
    pulls = [e for e in outcome.trace.of(Kind.MOVED) if e.data["direction"] == "pull"]
    assert pulls[0].data["failed"] == pulls[0].data["blocks"]


def test_what_does_not_fit_into_the_new_layout_is_refused() -> None:
    """Of blocks of 32 tokens it needed 7, of 16 it needs 14, of 13."""
    shape = dataclasses.replace(APART, num_blocks=14, block_size=32)
    outcome = played(
        Hold("route"), Arrive(Prompt(0, 215)), Step(5), Redeploy(block_size=16), Release(),
        Step(9, 1), shape=shape,
    )  # fmt: skip
    assert not list(outcome.trace.of(Kind.FORWARDED))


def test_each_life_has_a_name_of_its_own() -> None:
    assert [compat.Life(n).name(1) for n in range(3)] == ["e1", "e1l1", "e1l2"]


def test_what_vllm_does_not_tell_apart_does_not_arrive() -> None:
    assert compat.tells_apart(Identity())
    assert compat.tells_apart(Identity(media="x"))
    known = compat.tells_apart(Identity(adapter="x", version=1))
    outcome = played(Arrive(P, adapter="x", version=1), Step())
    assert next(e.data["effect"] for e in outcome.trace.of(Kind.ACTION)) is known
