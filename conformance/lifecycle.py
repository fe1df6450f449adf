"""L1: the life cycle of a request in fixed scenarios, the ones that every connector meets first."""

from __future__ import annotations

from kvconform.faults.packages import is_tight, package_of
from kvconform.scenario.actions import (
    Abort,
    Action,
    Arrive,
    Busy,
    Corrupt,
    Cut,
    Fail,
    Hold,
    Lose,
    Redeploy,
    Release,
    Reset,
    Restart,
    Step,
    Stop,
    Tick,
)
from kvconform.scenario.prompt import Prompt
from kvconform.scenario.scenario import Scenario
from kvconform.scenario.shape import Shape

_SMALL = Shape()
_GROUPS = Shape(window=24)
_APART = Shape(topology="pd", engines=2)
_PROMPT = Prompt(0, 50)


def _again(**fields: object) -> Arrive:
    return Arrive(_PROMPT, **fields)  # type: ignore[arg-type]


def _through(count: int) -> tuple[Action, ...]:
    """Steps of the engine that prefills, and of the one that decodes."""
    return (Step(count), Step(count, 1))


SCENARIOS: dict[str, Scenario] = {
    "one request": Scenario(_SMALL, (_again(max_tokens=3),)),
    "short prompt": Scenario(_SMALL, (Arrive(Prompt(0, 5), 20),)),
    "found locally": Scenario(_SMALL, (_again(), Step(4), _again(max_tokens=2))),
    "found outside": Scenario(_SMALL, (_again(), Step(4), Reset(), _again(max_tokens=2))),
    "found in both": Scenario(
        _SMALL, (_again(), Step(4), Reset(), Arrive(Prompt(0, 20)), Step(4), _again(max_tokens=2))
    ),
    "whole prompt outside": Scenario(
        _SMALL, (Arrive(Prompt(0, 48), 20), Step(24), Reset(), Arrive(Prompt(0, 48), 2))
    ),
    "two ranks, one late": Scenario(
        Shape(tp=2), (_again(), Step(4), Reset(), Hold("load", 1), _again(), Step(3), Release())
    ),
    "abort while waiting": Scenario(_SMALL, (_again(), Abort(), Step(2), _again())),
    "abort while loading": Scenario(
        _SMALL,
        (_again(), Step(4), Reset(), Hold("load"), _again(), Step(2), Abort(), Step(2), Release()),
    ),
    "abort in the middle of a step": Scenario(
        _SMALL, (_again(max_tokens=4), Step(2), Abort(mid_step=True), Step(3), _again())
    ),
    "abort while saving": Scenario(
        _SMALL, (Hold("save"), _again(), Step(3), Abort(), Step(2), Release(), Step(3))
    ),
    "chunked prefill": Scenario(
        Shape(max_num_batched_tokens=24), (Arrive(Prompt(0, 70), 2), Step(6), Reset(),
                                           Arrive(Prompt(0, 70), 2))
    ),
    "preempted and resumed": Scenario(
        _SMALL, (_again(max_tokens=20), Step(5), Reset(running=True), Step(3))
    ),
    "deferred": Scenario(_SMALL, (_again(), Step(4), Reset(), Busy(2), _again(), Step(4))),
    "failed load": Scenario(_SMALL, (_again(), Step(4), Reset(), Fail(), _again(), Step(4))),
    "two engines, one store": Scenario(
        Shape(engines=2), (_again(), Step(4), _again(engine=1, max_tokens=2), Step(4, 1))
    ),
    "tenants": Scenario(_SMALL, (_again(salt="a"), Step(4), _again(salt="b"))),
    "adapters": Scenario(_SMALL, (_again(adapter="a"), Step(4), _again(adapter="b"))),
    "a tenant returns": Scenario(_SMALL, (_again(salt="a"), Step(4), Reset(), _again(salt="a"))),
    "images": Scenario(
        _SMALL, (_again(media="cat"), Step(4), _again(media="dog"), Step(4),
                 _again(media="dog", media_at=20), Step(4), Reset(), _again(media="dog"))
    ),
    "embeddings": Scenario(
        _SMALL, (_again(embeds="m"), Step(4), _again(embeds="n"), Step(4), Reset(),
                 _again(embeds="m"), Step(4), _again())
    ),
    "another adapter of that name": Scenario(
        _SMALL, (_again(adapter="x"), Step(4), _again(adapter="x", version=1))
    ),
    "dies and starts anew": Scenario(
        _SMALL, (_again(max_tokens=4), Step(6), _again(max_tokens=9), Step(2), Restart(), _again())
    ),
    "dies while it saves": Scenario(
        _SMALL, (Hold("save"), _again(), Step(3), Restart(), _again(), Step(4), Release())
    ),
    "dies while it loads": Scenario(
        _SMALL, (_again(), Step(4), Reset(), Hold("load"), _again(), Step(2), Restart(), _again(),
                 Step(2), Release())
    ),
    "shut down and started anew": Scenario(
        _SMALL, (_again(max_tokens=9), Step(3), Restart(clean=True), _again())
    ),
    "another model": Scenario(
        _SMALL, (_again(), Step(4), Redeploy("b"), _again(), Step(4), Redeploy(), _again())
    ),
    "other blocks": Scenario(
        _SMALL, (_again(), Step(4), Redeploy(block_size=32), _again(), Step(4))
    ),
    "torn save": Scenario(
        _SMALL, (Fail(1, "torn", direction="save"), _again(), Step(4), Reset(), _again(), Step(4))
    ),
    "torn load": Scenario(
        _SMALL, (_again(), Step(4), Reset(), Fail(1, "torn"), _again(), Step(4))
    ),
    "damaged": Scenario(_SMALL, (_again(), Step(4), Reset(), Corrupt(), _again(), Step(4))),
    "store forgets": Scenario(
        Shape(store_blocks=4),
        (_again(), Step(4), Arrive(Prompt(1, 50)), Step(4), Reset(), _again(), Step(4)),
    ),
    "no room": Scenario(  # what is found outside waits for blocks, and is looked up in every step
        Shape(num_blocks=9),
        (_again(), Step(4), Reset(), Arrive(Prompt(1, 84), 20), Step(2), _again(), Step(4)),
    ),
    "the same id": Scenario(_SMALL, (_again(), Step(4), Arrive(Prompt(1, 50), 2, again=0))),
    "async scheduling": Scenario(
        Shape(async_scheduling=True), (_again(max_tokens=3), Step(6), Reset(), _again(max_tokens=3))
    ),
    "the other model runner": Scenario(
        Shape(runner="v2"),
        (_again(max_tokens=9), Step(4), Reset(running=True), Step(2), Reset(), _again()),
    ),
    "reset of the store": Scenario(_SMALL, (_again(), Step(6), Reset(connector=True), _again())),
    "two groups": Scenario(_GROUPS, (_again(), Step(4), Reset(), _again(max_tokens=2))),
    "failed load of two groups": Scenario(
        _GROUPS, (_again(), Step(4), Reset(), Fail(), _again(max_tokens=2), Step(4))
    ),
    "admitted while another is loading": Scenario(
        _SMALL,
        (_again(), Step(4), Reset(), Hold("load"), _again(), Step(), Arrive(Prompt(1, 20), 2),
         Step(2), Release()),
    ),
    "shut down while loading": Scenario(
        _SMALL, (_again(), Step(4), Reset(), Hold("load"), _again(), Step(), Stop())
    ),
    "drafts": Scenario(Shape(drafts=3), (_again(max_tokens=20), Step(9), Reset(), _again())),
    "prefill and decode": Scenario(_APART, (_again(max_tokens=3), *_through(6))),
    "found where it decodes": Scenario(
        _APART, (_again(max_tokens=3), *_through(6), _again(max_tokens=3), *_through(6))
    ),
    "one prefills, two decode": Scenario(
        Shape(topology="pd", engines=3),
        (_again(max_tokens=2), _again(max_tokens=2, engine=1), *_through(4), Step(6, 2)),
    ),
    "aborted before it decodes": Scenario(
        _APART, (_again(max_tokens=3), Step(4), Abort(), *_through(3))
    ),
    "aborted while it is pulled": Scenario(
        _APART,
        (Hold("load"), _again(max_tokens=3), *_through(4), Abort(), *_through(2), Release()),
    ),
    "dies before it is pulled": Scenario(
        _APART, (Hold("load"), _again(max_tokens=2), *_through(4), Restart(), Release(),
                 *_through(3), _again(max_tokens=2), *_through(6)),
    ),
    "dies while it pulls": Scenario(
        _APART, (Hold("load"), _again(max_tokens=2), *_through(4), Restart(1), Release(),
                 *_through(3), _again(max_tokens=2), *_through(6)),
    ),
    "nobody comes": Scenario(
        _APART, (Hold("route"), _again(), Step(4), Lose(), Tick(), *_through(2))
    ),
    "pulled too late": Scenario(
        _APART, (Hold("load"), _again(max_tokens=2), *_through(4), Tick(3600), Step(2), Release())
    ),
    "the other engine is gone": Scenario(
        _APART,
        (Hold("load"), _again(max_tokens=2), *_through(4), Cut(), Release(), *_through(3),
         Cut(back=True), _again(max_tokens=2), *_through(6)),
    ),
}  # fmt: skip


def packages_of(scenario: Scenario) -> frozenset[str]:
    """The fault packages whose actions a scenario uses."""
    needed = {package for a in scenario.actions if (package := package_of(a)) is not None}
    arrivals = [a for a in scenario.actions if isinstance(a, Arrive)]
    if is_tight(scenario.shape):
        needed.add("tight-pool")
    if any(a.again is not None for a in arrivals):
        needed.add("same-id")
    if len(arrivals) > 1:
        needed.add("full-hit")
    if scenario.shape.topology == "pd":
        needed.add("handover")
    if any(a.embeds for a in arrivals):
        needed.add("embeds")
    if any(a.salt or a.adapter or a.media for a in arrivals):
        needed.add("tenants")
    if any(isinstance(a, Reset) and a.connector for a in scenario.actions):
        needed.add("reset")
    return frozenset(needed)
