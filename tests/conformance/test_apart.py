"""Prefill and decode apart: what passes between the engines, and what the other one hears."""

from __future__ import annotations

from kvconform.conformance.run import Run, play
from kvconform.connectors.targets.resolve import resolve
from kvconform.scenario.actions import (
    Action,
    Arrive,
    Cut,
    Hold,
    Lose,
    Release,
    Reset,
    Step,
    Tick,
)
from kvconform.scenario.prompt import Prompt
from kvconform.scenario.scenario import Scenario
from kvconform.scenario.shape import Shape
from kvconform.scenario.trace import Event, Kind, Trace

APART = Shape(topology="pd", engines=2)
ASCEND = resolve("ascend")
FULL_HIT = resolve("zoo:full-hit-report")
PROMPT = Prompt(0, 33)  # two blocks and a token: where it was decoded, all is found again


def decoded(max_tokens: int = 2) -> tuple[Action, ...]:
    """A request is prefilled, handed over and decoded."""
    return (Arrive(PROMPT, max_tokens), Step(3), Step(6, 1), Step(1))


def received(trace: Trace) -> set[str]:
    return {name for e in trace.of(Kind.OUTPUT) for name in e.data["recving"]}


def freed(trace: Trace, request: str) -> Event | None:
    """The event with which the engine that prefilled forgot a request."""
    return next(
        (e for e in trace.of(Kind.STATUS) if e.request == request and e.data["new"] is None), None
    )


def test_kv_goes_from_one_engine_to_the_other() -> None:
    outcome = play(ASCEND, Scenario(APART, decoded(4)))
    assert outcome.violation is None
    moved = [e for e in outcome.trace.of(Kind.MOVED) if e.data["direction"] == "pull"]
    assert [(e.request, e.engine, e.data["source"]) for e in moved] == [("r0d", 1, 0)]
    assert received(outcome.trace) == {"r0d"}
    assert freed(outcome.trace, "r0") is not None


def test_a_full_local_hit_is_not_received_and_the_other_engine_is_told_all_the_same() -> None:
    with Run(ASCEND, APART) as run:
        for action in (*decoded(), *decoded()):
            assert run.do(action)
        assert received(run.trace) == {"r0d"}  # the second found everything locally
        assert freed(run.trace, "r1") is not None  # before any lease: no time has passed
        run.drain()
        assert run.violation is None


def test_the_wrong_connector_reports_it_and_still_releases() -> None:
    again: tuple[Action, ...] = (Hold("load"), Arrive(PROMPT, 4), Step(3), Step(1, 1))
    with Run(FULL_HIT, APART) as run:
        for action in (*decoded(), *again, Release(), Step(1)):
            assert run.do(action)
        assert freed(run.trace, "r1") is not None
        run.do(Step(1, 1))
        assert run.violation is not None
        found = run.violation.fingerprint
        assert (found.rule, found.side) == ("KVC-302", "worker half")
        assert run.violation.request == "r1d"


def test_two_engines_decode_what_one_prefilled() -> None:
    shape = Shape(topology="pd", engines=3)
    arrivals = (Arrive(Prompt(0, 40), 2), Arrive(Prompt(1, 40), 2, engine=1))
    outcome = play(ASCEND, Scenario(shape, arrivals))
    assert outcome.violation is None
    forwarded = {e.request: e.engine for e in outcome.trace.of(Kind.FORWARDED)}
    assert forwarded == {"r0d": 1, "r1d": 2}


def test_a_lease_runs_out_when_nobody_comes() -> None:
    actions = (Hold("route"), Arrive(PROMPT), Step(3), Lose())
    with Run(ASCEND, APART) as run:
        for action in (*actions, Tick(59), Step(2)):
            assert run.do(action)
        assert freed(run.trace, "r0") is None
        assert run.do(Tick(2))
        assert run.do(Step(1))
        assert freed(run.trace, "r0") is not None


def test_who_pulls_too_late_gets_nothing_and_says_so() -> None:
    actions = (Hold("load"), Arrive(PROMPT, 3), Step(3), Step(2, 1), Tick(61), Step(2), Release())
    outcome = play(ASCEND, Scenario(APART, actions))
    assert outcome.violation is None
    (pull,) = (e for e in outcome.trace.of(Kind.MOVED) if e.data["direction"] == "pull")
    assert pull.data["failed"] == pull.data["blocks"]


def test_an_engine_that_cannot_be_reached_serves_nobody_and_hears_nothing() -> None:
    actions = (Hold("load"), Arrive(PROMPT, 3), Step(3), Step(2, 1), Cut(0), Release(), Step(2, 1))
    with Run(ASCEND, APART) as run:
        for action in (*actions, Step(2)):
            assert run.do(action)
        assert freed(run.trace, "r0") is None
        run.drain()
        assert run.violation is None
        assert freed(run.trace, "r0") is not None


def test_what_is_handed_over_is_not_what_a_reset_forgets() -> None:
    actions = (Arrive(PROMPT), Step(3), Reset(connector=True, engine=1), Step(3, 1))
    assert play(ASCEND, Scenario(APART, actions)).violation is None
