"""Engines on a simulated device: what is launched happens when its stream gets there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from kvconform.conformance.run import Outcome, play
from kvconform.connectors.targets.resolve import resolve, with_flags
from kvconform.faults.devices import cann
from kvconform.scenario.actions import Action, Arrive, Break, Flow, Reset, Restart, Stall, Step
from kvconform.scenario.prompt import Prompt
from kvconform.scenario.scenario import Scenario
from kvconform.scenario.shape import Shape
from kvconform.scenario.trace import Kind

pytestmark = pytest.mark.skipif(cann.missing() is not None, reason=str(cann.missing()))

ASCEND = with_flags(resolve("ascend"), role=None, extra=None, device="ascend-sim")
PROMPT = Prompt(1, 33)
AGAIN: tuple[Action, ...] = (Arrive(PROMPT, 2), Step(6), Reset(), Arrive(PROMPT, 2), Step(6))


def on_device(*actions: Action, shape: Shape | None = None) -> Outcome:
    return play(ASCEND, Scenario(shape or Shape(), actions))


def waited(outcome: Outcome) -> int:
    return sum(event.data["waited"] for event in outcome.trace.of(Kind.DEVICE))


def failed(outcome: Outcome) -> list[list[int]]:
    """The failed blocks of each load."""
    moved = outcome.trace.of(Kind.MOVED)
    return [event.data["failed"] for event in moved if event.data["direction"] == "load"]


def test_nothing_waits_where_nothing_is_stalled() -> None:
    outcome = on_device(*AGAIN)
    assert outcome.violation is None
    assert not waited(outcome)
    assert failed(outcome) == [[]]


@pytest.mark.parametrize("streams", ["compute", "copy", "any"])
@pytest.mark.parametrize("ahead", [False, True])
def test_a_right_connector_does_not_mind_stalled_streams(streams: str, ahead: bool) -> None:
    stall = Stall(streams)  # type: ignore[arg-type]
    outcome = on_device(stall, *AGAIN, Flow(1, newest_first=True), shape=Shape(
        async_scheduling=ahead, tp=2
    ))  # fmt: skip
    assert outcome.violation is None
    assert bool(waited(outcome)) is (streams != "compute")


@pytest.mark.parametrize("late", [False, True])
def test_a_copy_that_fails_is_a_load_that_fails(late: bool) -> None:
    outcome = on_device(*AGAIN[:3], Break(1, late), *AGAIN[3:])
    assert outcome.violation is None
    assert any(failed(outcome))
    assert outcome.reached["KVC-601"]


def test_an_engine_dies_with_what_its_device_was_to_do() -> None:
    outcome = on_device(
        Stall("any"), Arrive(PROMPT, 20), Step(3), Restart(0), Arrive(PROMPT, 2), Step(4),
        shape=Shape(async_scheduling=True),
    )  # fmt: skip
    assert outcome.violation is None


def test_equal_scenarios_give_equal_runs() -> None:
    scenario = (Stall("any"), *AGAIN, Flow(2), Step(2))
    first, second = on_device(*scenario), on_device(*scenario)
    assert [e.to_json() for e in first.trace.events] == [e.to_json() for e in second.trace.events]


@pytest.fixture
def host_only() -> Iterator[None]:
    yield
    vars(torch)["npu"].set_device(0)


@pytest.mark.usefixtures("host_only")
def test_on_the_host_the_actions_do_nothing() -> None:
    outcome = play(resolve("ascend"), Scenario(Shape(), (Stall(), Break(), Flow(), *AGAIN)))
    told = [e.data["effect"] for e in outcome.trace.of(Kind.ACTION)]
    assert told[:3] == [False, False, False]
    assert outcome.violation is None
