"""The world that obeys orders, with its stated semantics."""

from __future__ import annotations

import pytest

from kvconform.conformance.run import Run
from kvconform.connectors.targets.resolve import resolve
from kvconform.faults import transport
from kvconform.faults.packages import NAMES, possible, select
from kvconform.scenario.actions import Arrive, Busy, Fail, Hold, Release, Reset, Step
from kvconform.scenario.errors import UsageError
from kvconform.scenario.prompt import Prompt
from kvconform.scenario.shape import Shape
from kvconform.scenario.trace import Event, Kind

P = Prompt(0, 50)


def started(shape: Shape | None = None) -> Run:
    """A run whose store holds the prompt, and whose local cache is empty."""
    run = Run(resolve("ascend"), shape or Shape())
    for action in (Arrive(P), Step(4), Reset()):
        run.do(action)
    return run


def moved(run: Run, direction: str) -> list[Event]:
    return [e for e in run.trace.of(Kind.MOVED) if e.data["direction"] == direction]


def test_what_is_not_held_moves_at_once() -> None:
    with started() as run:
        run.do(Arrive(P))
        run.do(Step())
        (load,) = moved(run, "load")
        assert load.data["opened"] == load.step


def test_what_is_held_moves_when_it_is_released() -> None:
    with started() as run:
        for action in (Hold("load"), Arrive(P), Step(3)):
            run.do(action)
        assert not moved(run, "load")
        run.do(Release(0))
        (load,) = moved(run, "load")
        assert load.data["opened"] < load.step
        run.drain()
        assert run.violation is None


def test_releases_come_in_any_order_and_per_rank() -> None:
    with started(Shape(tp=2)) as run:
        for action in (Hold("load"), Arrive(P), Step(1), Release(1), Step(1)):
            run.do(action)
        assert [e.rank for e in moved(run, "load")] == [0]
        assert not [e for e in run.trace.of(Kind.OUTPUT) if e.data["recving"]]
        run.do(Release(0))
        run.do(Step(1))
        assert [e for e in run.trace.of(Kind.OUTPUT) if e.data["recving"] == {"r1"}]
        run.drain()
        assert run.violation is None


def test_holding_one_rank_leaves_the_other_alone() -> None:
    with started(Shape(tp=2)) as run:
        for action in (Hold("load", 1), Arrive(P), Step(2)):
            run.do(action)
        assert [e.rank for e in moved(run, "load")] == [0]


def test_who_waits_lets_time_pass() -> None:
    with started() as run:
        for action in (Hold("any"), Arrive(Prompt(0, 17)), Step(1)):  # one block: synchronous
            run.do(action)
        (load,) = moved(run, "load")
        assert load.data["opened"] == load.step


def test_a_failed_load_moves_none_of_its_failed_blocks() -> None:
    with started() as run:
        for action in (Fail(1, "first"), Arrive(P), Step(1)):
            run.do(action)
        (load,) = moved(run, "load")
        assert load.data["failed"] == load.data["blocks"][:1]
        run.drain()
        assert run.violation is None


def test_a_busy_store_does_not_answer() -> None:
    with started() as run:
        for action in (Busy(2), Arrive(P), Step(3)):
            run.do(action)
        answers = [
            e.data["answer"][0]
            for e in run.trace.of(Kind.HOOK)
            if e.data["name"] == "get_num_new_matched_tokens" and e.request == "r1"
        ]
        assert answers == [None, None, 48]


def test_the_drain_ends_all_faults() -> None:
    with started() as run:
        for action in (Hold("any"), Busy(99), Arrive(P), Arrive(Prompt(1, 50)), Step(3)):
            run.do(action)
        run.drain()
        assert run.violation is None
        assert not list(run.trace.of(Kind.LEFT))


def test_outside_a_run_there_is_no_transport() -> None:
    with pytest.raises(RuntimeError, match="only within a run"):
        transport.connect(None, None, 0, lambda: None)


def test_packages_by_name() -> None:
    assert select("all") == set(NAMES)
    assert select("none") == set()
    assert select("abort, delay") == {"abort", "delay"}
    assert "delay" not in possible(frozenset())
    with pytest.raises(UsageError, match="no fault package 'dealy'"):
        select("dealy")
