"""Ways to bring a request into a state, and a fault upon it there.

What random moves seldom meet is aimed at: a cell is a fault, a state of the life cycle and how far
transfers are in it (see ``cycle``). The way there is laid out for connectors that save what has
ended and load it again in the background; others may get elsewhere, which is no harm.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence

from kvconform.conformance.cycle import PAIRS, Phase, State
from kvconform.faults.packages import NAMES
from kvconform.scenario.actions import (
    Abort,
    Action,
    Arrive,
    Busy,
    Cut,
    Drop,
    Fail,
    Forget,
    Hold,
    Lose,
    Refuse,
    Release,
    Repeat,
    Reset,
    Step,
    Stop,
    Tick,
)
from kvconform.scenario.prompt import Prompt
from kvconform.scenario.shape import Shape

Cell = tuple[str, State, Phase]
Actions = tuple[Action, ...]

OUTPUT = 20
"""Output tokens of the request that is steered: it runs for so many steps."""


@dataclasses.dataclass(frozen=True, slots=True)
class Recipe:
    """How a request gets from one state to the next.

    Attributes:
        state: where it is.
        to: where it gets.
        actions: by which actions; steps are of engine 0 (see :func:`path`).
    """

    state: State
    to: State
    actions: Actions


RECIPES: tuple[Recipe, ...] = (
    Recipe("waiting", "deferred", (Busy(1), Step())),
    Recipe("deferred", "deferred", (Busy(1), Step())),
    Recipe("waiting", "loading", (Hold("load"), Step())),
    Recipe("deferred", "loading", (Hold("load"), Step())),
    Recipe("loading", "loaded", (Release(), Step())),
    Recipe("loaded", "running", (Step(),)),
    Recipe("running", "preempted", (Reset(running=True),)),
    Recipe("preempted", "loading", (Hold("load"), Step())),
    Recipe("preempted", "deferred", (Busy(1), Step())),
    Recipe("running", "kept", (Hold("save"), Step(OUTPUT))),
    Recipe("loading", "ended loading", (Abort(),)),
    Recipe("waiting", "gone", (Abort(),)),
    Recipe("deferred", "gone", (Abort(),)),
    Recipe("loaded", "gone", (Abort(),)),
    Recipe("running", "gone", (Abort(),)),
    Recipe("preempted", "gone", (Abort(),)),
    Recipe("ended loading", "gone", (Release(), Step(2))),
    Recipe("kept", "gone", (Release(), Step(2))),
)
"""For a request whose prompt is found outside."""

_WAYS: Mapping[State, tuple[State, ...]] = {
    "waiting": (),
    "deferred": ("deferred",),
    "matched": (),
    "loading": ("loading",),
    "loaded": ("loading", "loaded"),
    "running": ("loading", "loaded", "running"),
    "preempted": ("loading", "loaded", "running", "preempted"),
    "kept": ("loading", "loaded", "running", "kept"),
    "ended loading": ("loading", "ended loading"),
}
"""The shortest way to each state, from ``waiting``."""

FRESH: tuple[Recipe, ...] = (
    Recipe("waiting", "running", (Step(),)),
    Recipe("running", "preempted", (Reset(running=True),)),
    Recipe("running", "kept", (Hold("save"), Step(OUTPUT))),
)
"""The same for one whose prompt nobody has had."""

_FRESH_WAYS: Mapping[State, tuple[State, ...]] = {
    "running": ("running",),
    "preempted": ("running", "preempted"),
    "kept": ("running", "kept"),
}

_BY_STATES = {(recipe.state, recipe.to): recipe.actions for recipe in RECIPES}

_FRESH = {(recipe.state, recipe.to): recipe.actions for recipe in FRESH}

_PHASES: Mapping[Phase, Actions] = {
    "-": (),
    "planned": (),
    "under way": (),
    "moved": (Release(),),
    "some ranks": (Release(0), Step()),
}
"""What makes it so, of a transfer that is held."""


def outside(prompt: Prompt, shape: Shape) -> Actions:
    """A prompt is found outside, and not in the engine: another request has left it there.

    Where prefill and decode are apart nothing has to be done: the one leaves it to the other.
    """
    if shape.topology == "pd":
        return ()
    return (Arrive(prompt), Step(5), Reset())


def begin(prompt: Prompt, shape: Shape) -> Actions:
    """A request with this prompt waits."""
    arrive = Arrive(prompt, OUTPUT)
    return (Hold("load"), arrive, Step(4)) if shape.topology == "pd" else (arrive,)


def path(state: State, phase: Phase, prompt: Prompt, shape: Shape, fresh: bool = False) -> Actions:
    """Actions that bring a request with this prompt, the latest one, into a state.

    ``fresh``: without anything of it outside, if there is such a way.
    """
    if state == "matched":
        return (
            *outside(prompt, shape), *_rivals(shape), Arrive(prompt, OUTPUT), Step()
        )  # fmt: skip
    fresh = fresh and state in _FRESH_WAYS and shape.topology == "store"
    before = Hold("save") if (state, phase) == ("running", "under way") else None
    actions: list[Action] = [] if before is None else [before]
    actions += () if fresh else outside(prompt, shape)
    actions += begin(prompt, shape)
    at: State = "waiting"
    for to in (_FRESH_WAYS if fresh else _WAYS)[state]:
        actions += (_FRESH if fresh else _BY_STATES)[at, to]
        at = to
    actions += _PHASES[phase]
    if shape.topology == "pd":  # it goes on where it decodes
        begun = len(begin(prompt, shape))
        actions[begun:] = [
            dataclasses.replace(a, engine=1) if isinstance(a, Step | Reset) else a
            for a in actions[begun:]
        ]
    return tuple(actions)


def _rivals(shape: Shape) -> Actions:
    """Requests that fill a pool, and run."""
    left, size, actions = shape.num_blocks - 1, shape.block_size, list[Action]()
    while left > 0:
        blocks = min(left, 5)
        prompt = Prompt(900 + left, blocks * size - 4)  # a few tokens before they need more
        actions.append(Arrive(prompt, OUTPUT))
        left -= blocks
    steps = -(-(shape.num_blocks - 1) * size // shape.max_num_batched_tokens)
    return (*actions, Step(steps))


def fault(name: str, prompt: Prompt, shape: Shape) -> Actions:
    """The actions of a fault package, upon the latest request."""
    match name:
        case "full-hit":
            return (Arrive(prompt, 4),)
        case "tenants":
            return (Arrive(prompt, 4, salt="a"),)
        case "delay":
            return (Hold(),)
        case "abort":
            return (Abort(),)
        case "preempt":
            return (Reset(running=True),)
        case "defer":
            return (Busy(2), Arrive(prompt, 4))
        case "reset":
            return (Reset(connector=True),)
        case "tight-pool":  # they need what it has
            return tuple(
                Arrive(Prompt(900 + i, 4 * shape.block_size - 4), OUTPUT)
                for i in range(max(2, min(6, shape.num_blocks // 4)))
            )
        case "fail-load":
            return (Fail(2), Arrive(prompt, 4))
        case "full":
            return (Refuse(),)
        case "fail-save":
            return (Fail(2, direction="save"),)
        case "lost":
            return (Drop(),)
        case "forget":
            return (Forget(), Arrive(prompt, 4))
        case "shutdown":
            return (Stop(),)
        case "same-id":
            return (Abort(), Step(2), Arrive(prompt, 4, again=0))
        case "handover":
            return (Arrive(prompt, 4),)
        case "expire":
            return (Lose(), Tick(3600.0))
        case "repeat":
            return (Repeat(),)
        case "peer-gone":
            return (Cut(),)
    raise ValueError(f"no way is known to bring {name} upon a request")


def cells(packages: Sequence[str]) -> list[Cell]:
    """What these packages should meet."""
    return [(name, *pair) for name in NAMES if name in packages for pair in PAIRS]


def rarest(wanted: Sequence[Cell], seen: Counter[str], k: int) -> Cell:
    """The cell that was met k-th most seldom so far; of equals the first one."""
    ranked = sorted(wanted, key=lambda cell: seen["/".join(cell)])
    return ranked[k % len(ranked)]
