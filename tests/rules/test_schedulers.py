"""Wrong schedulers: one for each rule of vLLM's own, and what is found is put down to vLLM."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from kvconform.conformance import static
from kvconform.conformance.rules import RULES
from kvconform.conformance.run import play
from kvconform.connectors.targets.resolve import from_toml, resolve
from kvconform.connectors.zoo.catalogue import MUTANTS
from kvconform.engine import compat
from kvconform.scenario.actions import Abort, Action, Arrive, Fail, Hold, Release, Reset, Step
from kvconform.scenario.errors import UsageError
from kvconform.scenario.prompt import Prompt
from kvconform.scenario.releases import within
from kvconform.scenario.scenario import Scenario
from kvconform.scenario.shape import Shape

NEWEST = "0.32.0"
"""The release that the wrong schedulers are made of."""

ASCEND = resolve("ascend")
P = Prompt(0, 50)
SHORT = Prompt(0, 17)  # one block outside: a synchronous load
OUTSIDE: tuple[Action, ...] = (Arrive(P), Step(4), Reset())


class Derived(Scheduler):
    pass


class Mixin:
    pass


def test_each_rule_of_vllms_own_has_a_wrong_scheduler() -> None:
    owed = {r.id for r in RULES if r.side == "vLLM" and r.holds_for(NEWEST)}
    wrong = [mutant for mutant in MUTANTS if mutant.is_scheduler]
    # Of VLL-703 vLLM's own is: V-04.
    assert {rule for mutant in wrong for rule in mutant.rules} == owed - {"VLL-703"}


KILLS: tuple[tuple[str, str, Shape, tuple[Action, ...]], ...] = (
    ("finishes-twice", "VLL-102", Shape(), (Hold("save"), Arrive(P), Step(3), Abort())),
    ("takes-ids-in-use", "VLL-103", Shape(),
     (Hold("save"), Arrive(P), Step(3), Arrive(Prompt(1, 50), again=0), Step(3))),
    ("keeps-failed-blocks", "VLL-201", Shape(load_failure_policy="fail"),
     (Arrive(SHORT), Step(4), Reset(), Fail(), Arrive(SHORT), Step(2), Arrive(SHORT, 3))),
    ("frees-while-loading", "VLL-401", Shape(num_blocks=10),
     (*OUTSIDE, Hold("load"), Arrive(P, 20), Step(2), Abort(), Arrive(Prompt(1, 120), 20), Step(2),
      Release())),
    ("frees-at-once", "VLL-401", Shape(topology="pd", engines=2, num_blocks=6),
     (Arrive(Prompt(0, 33)), Step(3), Arrive(Prompt(1, 33)))),
    ("tells-twice", "VLL-105", Shape(), (Arrive(SHORT), Step(2), Arrive(P, 4))),
    ("tells-of-no-abort", "VLL-105", Shape(), (Arrive(SHORT), Abort(), Arrive(P), Step(2))),
    ("publishes-too-soon", "VLL-204", Shape(),
     (*OUTSIDE, Hold("load"), Arrive(P), Step(), Arrive(P), Step(2))),
    ("resets-in-name-only", "VLL-402", Shape(), (Arrive(SHORT),)),
    ("rests-too-soon", "VLL-702", Shape(), (Hold("save"), Arrive(P), Step(5))),
)  # fmt: skip


@pytest.mark.parametrize(("name", "rule", "shape", "actions"), KILLS, ids=[k[0] for k in KILLS])
@pytest.mark.parametrize("runs_ahead", [False, True], ids=["sync", "async"])
def test_a_wrong_scheduler_is_found_and_the_right_one_is_not(
    name: str, rule: str, shape: Shape, actions: tuple[Action, ...], runs_ahead: bool
) -> None:
    scenario = Scenario(dataclasses.replace(shape, async_scheduling=runs_ahead), actions)
    found = play(resolve(f"zoo:{name}"), scenario).violation
    assert found is not None
    assert (found.fingerprint.rule, found.fingerprint.side) == (rule, "vLLM"), found
    right = play(ASCEND, scenario).violation
    # Until 0.20.2 vLLM's own loop rests while blocks are kept (V-11), whatever else is right.
    rests = within(compat.vllm_version(), "", "0.20.2") and right is not None
    assert right is None or (rests and right.fingerprint.rule == "VLL-702")


def test_blocks_that_were_given_back_too_soon_are_not_the_connectors_fault() -> None:
    # The pool is empty, and is reset, while a save is still owed: it saves what was computed.
    actions = (Hold("save"), Arrive(SHORT), Step(2), Reset(), Release(), Step(2), Arrive(SHORT))
    assert play(resolve("zoo:frees-at-once"), Scenario(Shape(), actions)).violation is None


@pytest.mark.parametrize(("runs_ahead", "own"), [(False, Scheduler), (True, AsyncScheduler)])
def test_a_mixin_is_combined_with_what_the_shape_asks_for(runs_ahead: bool, own: type) -> None:
    shape = Shape(async_scheduling=runs_ahead)
    target = dataclasses.replace(ASCEND, scheduler=f"{__name__}:Mixin")
    cls = compat.scheduler_class(target, shape)
    assert (cls.__name__, cls.__bases__) == ("Mixin", (Mixin, own))
    assert cls is compat.scheduler_class(target, shape)
    assert compat.scheduler_class(ASCEND, shape) is own


def test_a_class_of_vllms_is_used_as_it_is() -> None:
    target = dataclasses.replace(ASCEND, scheduler=f"{__name__}:Derived")
    for runs_ahead in (False, True):
        shape = Shape(async_scheduling=runs_ahead)
        assert compat.scheduler_class(target, shape) is Derived


@pytest.mark.parametrize(
    ("scheduler", "says"),
    [
        ("nowhere:Thing", "no module 'nowhere' for the scheduler 'nowhere:Thing'"),
        ("json:Thing", "no class 'Thing'"),
        ("json:loads", "'json:loads' is not a scheduler"),
    ],
)
def test_what_is_not_a_scheduler(scheduler: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        static.load(dataclasses.replace(ASCEND, scheduler=scheduler))


def test_a_target_file_names_its_scheduler(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('cls = "a:B"\nscheduler = "my.package:Scheduler"')
    assert from_toml(path).scheduler == "my.package:Scheduler"
    path.write_text('cls = "a:B"\nscheduler = "nonsense"')
    with pytest.raises(UsageError, match=r"must be package\.module:Class, got 'nonsense'"):
        from_toml(path)
