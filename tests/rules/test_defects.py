"""What vLLM gets wrong is found on the releases that do, and on no other."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import pytest

from kvconform.conformance.rules import BY_ID
from kvconform.conformance.run import play
from kvconform.connectors.targets.resolve import resolve
from kvconform.engine import compat
from kvconform.engine.compat import vllm_version
from kvconform.scenario.actions import Abort, Action, Arrive, Busy, Fail, Hold, Release, Reset, Step
from kvconform.scenario.errors import RefusedError
from kvconform.scenario.prompt import Prompt
from kvconform.scenario.scenario import Scenario
from kvconform.scenario.shape import Shape
from tests.conformance.groups import LoadsToTheEnd
from tests.conformance.right import KeepsAll, PartOfABlock, right

P = Prompt(0, 50)
SHORT = Prompt(0, 17)  # one block outside: a synchronous load

LONG = Prompt(0, 65)  # four whole blocks: an asynchronous one


@dataclass(frozen=True)
class Defect:
    """A defect of vLLM.

    Attributes:
        name: where it is written down.
        rule: what it comes out as.
        until: the last release that was seen to have it; empty: the newest has it.
        actions: what shows it.
        shape: on what.
        target: with which connector, a right one: a class, or a name.
        since: the first release that was seen to have it.
        without: releases in between that were seen not to.
    """

    name: str
    rule: str
    until: str
    actions: tuple[Action, ...]
    shape: Shape = Shape()  # noqa: RUF009 - it is frozen
    target: type | str = "ascend"
    since: str = "0.11.0"
    without: tuple[str, ...] = ()

    def is_in(self, vllm: str) -> bool:
        """Whether this vLLM has it."""
        rule = dataclasses.replace(BY_ID[self.rule], since=self.since, until=self.until)
        return rule.holds_for(vllm) and vllm not in self.without


OUTSIDE: tuple[Action, ...] = (Arrive(P), Step(4), Reset())
"""What is saved, and no longer there."""

HALF_READY: tuple[Action, ...] = (
    *OUTSIDE, Hold("load"), Arrive(P, 20), Step(2), Abort(),
)  # fmt: skip
"""A request is aborted while it loads."""

DEFECTS = (
    Defect(
        "V-01", "VLL-201", "",
        (Arrive(SHORT), Step(3), Reset(), Fail(), Arrive(SHORT, 4), Step(), Abort(),
         Arrive(SHORT, 3)),
        since="0.11.2",
    ),
    Defect(
        "V-02", "VLL-201", "",
        (Arrive(SHORT), Step(3), Reset(), Fail(), Arrive(SHORT, 4), Arrive(SHORT, 4), Step(),
         Abort(1)),
        since="0.11.2",
    ),
    Defect(
        "V-03", "VLL-202", "",
        (Arrive(SHORT), Step(4), Reset(), Fail(), Arrive(SHORT, 4), Step(2)),
        Shape(async_scheduling=True), since="0.11.2",
    ),
    Defect(  # its connector takes vLLM at its word: what failed is recomputed
        "V-04", "VLL-703", "",
        (Arrive(Prompt(0, 33)), Step(4), Reset(), Fail(1000), Arrive(Prompt(0, 33)), Step(16)),
        target="zoo:insists", since="0.11.2",
    ),
    Defect(
        "V-06, blocks", "VLL-401", "0.13.0",
        (*HALF_READY, Arrive(Prompt(1, 120), 20), Step(2), Release()), Shape(num_blocks=10),
    ),
    Defect(
        "V-06, stale id", "VLL-701", "0.13.0",
        (*HALF_READY, Arrive(Prompt(1, 20), 9), Step(2), Release()),
    ),
    Defect(  # found by exploration: with a window, what fails to load needs more room than its load
        "nobody behind it", "VLL-701", "",
        (Arrive(LONG, 1), Step(4), Arrive(Prompt(1, 65), 1), Step(4), Reset(),
         Fail(1), Arrive(LONG, 1), Arrive(Prompt(1, 65), 1), Step(2)),
        Shape(num_blocks=14, window=8), since="0.32.0",
    ),
    Defect(  # likewise: resumed, it loads less than it had
        "nobody behind it, preempted", "VLL-701", "0.20.2",
        (Arrive(Prompt(0, 32, answer=15), 3), Step(), Step(2, 1), Arrive(Prompt(0, 49)),
         Step(1, 1), Reset(running=True, engine=1), Arrive(LONG)),
        Shape(num_blocks=13, topology="pd", engines=2), since="0.17.0",
    ),
    Defect(
        "V-07", "VLL-202", "0.13.0", (Arrive(Prompt(1, 40), 10), Arrive(Prompt(1, 40), 10)),
        Shape(num_blocks=8, prefix_caching=False),
    ),
    Defect(
        "V-08", "VLL-203", "0.17.0", (Arrive(P), Step(4), Reset(), Arrive(P)),
        target=PartOfABlock,
    ),
    Defect(  # not in the list either
        "what its last token sees", "VLL-203", "",
        (Arrive(Prompt(0, 48)), Step(4), Reset(), Arrive(Prompt(0, 48))),
        Shape(window=17), LoadsToTheEnd, since="0.18.0",
    ),
    Defect(
        "V-09", "VLL-101", "0.11.0",
        (Hold("save"), Arrive(P), Step(3), Arrive(P, 4), Arrive(Prompt(1, 50), 4), Step(2)),
    ),
    Defect(  # not in the list that the others are from: found by exploration
        "free is deferred", "VLL-101", "0.27.1",
        (Arrive(Prompt(0, 17)), Step(), Arrive(Prompt(0, 1)), Reset(running=True)),
        Shape(async_scheduling=True), since="0.27.1",
    ),
    Defect(
        "V-10, aborted again", "VLL-102", "0.11.0",
        (Hold("save"), Arrive(P), Step(3), Abort(), Step(2)),
    ),
    Defect(
        "V-10, aborted as it ends", "VLL-102", "0.13.0",
        (Arrive(P, 3), Step(2), Abort(mid_step=True), Step(2)),
        target=KeepsAll, without=("0.11.2",),
    ),
    Defect(  # found by exploration too
        "V-10, stopped by a token", "VLL-102", "0.13.0",
        (Arrive(Prompt(0, 16), 2, stop=1),), Shape(async_scheduling=True),
    ),
    Defect(  # found by exploration: it is taken out of one of two queues
        "admitted after its end", "VLL-104", "0.23.0",
        (Busy(), Arrive(Prompt(0, 16)), Step(2), Step(3, 1), Reset(running=True, engine=1),
         Step(1, 1)),
        Shape(pp=2, topology="pd", engines=2), since="0.18.0",
    ),
    Defect("V-11", "VLL-702", "0.20.2", (Hold("save"), Arrive(P), Step(3))),
    Defect(
        "V-12", "VLL-103", "0.13.0",
        (Hold("save"), Arrive(P), Step(3), Arrive(Prompt(1, 50), again=0), Step(3)),
    ),
)  # fmt: skip


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda d: d.name)
def test_a_defect_is_found_where_it_is_and_nowhere_else(defect: Defect) -> None:
    if not compat.supports("window", defect.shape.window):
        pytest.skip("this vLLM has one KV group")
    wanted = defect.target
    target = resolve(wanted) if isinstance(wanted, str) else right(wanted)
    try:
        violation = play(target, Scenario(defect.shape, defect.actions)).violation
    except RefusedError:
        assert not defect.is_in(vllm_version())
        pytest.skip("no connector here serves that with this vLLM")
    found = violation is not None and violation.fingerprint.rule == defect.rule
    assert found == defect.is_in(vllm_version()), violation
    # Whatever else this release gets wrong in it, it is the release's.
    assert violation is None or violation.fingerprint.side == "vLLM"


def test_the_catalogue_tells_of_each() -> None:
    for defect in DEFECTS:
        name, _, _ = defect.name.partition(",")
        assert name in BY_ID[defect.rule].text
