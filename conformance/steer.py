"""Ways to bring a request into a state, and a fault upon it there.

What random moves seldom meet is aimed at: a cell is a fault, a state of the life cycle and how far
transfers are in it (see ``cycle``). The way there is laid out for connectors that save what has
ended and load it again in the background; others may get elsewhere, which is no harm.
"""

from __future__ import annotations

import dataclasses
import functools
import random
from collections import Counter
from collections.abc import Mapping, Sequence

from kvconform.conformance.cycle import PAIRS, Phase, State
from kvconform.conformance.unreachable import why
from kvconform.faults.packages import NAMES, package_of
from kvconform.scenario.actions import (
    Abort,
    Action,
    Arrive,
    Break,
    Busy,
    Corrupt,
    Cut,
    Drop,
    Fail,
    Forget,
    Hold,
    Lose,
    Redeploy,
    Refuse,
    Release,
    Repeat,
    Reset,
    Restart,
    Stall,
    Step,
    Stop,
    Tick,
)
from kvconform.scenario.prompt import Prompt
from kvconform.scenario.shape import Shape, Topology

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

FRESH: tuple[Recipe, ...] = (
    Recipe("waiting", "running", (Step(),)),
    Recipe("running", "preempted", (Reset(running=True),)),
    Recipe("running", "kept", (Hold("save"), Step(OUTPUT))),
)
"""The same for one whose prompt nobody has had."""


def _ways(recipes: Sequence[Recipe]) -> dict[State, Actions]:
    """The shortest way from ``waiting`` to each state."""
    ways: dict[State, Actions] = {"waiting": ()}
    for state in (reached := ["waiting"]):
        for recipe in recipes:
            if recipe.state == state and recipe.to not in ways:
                ways[recipe.to] = (*ways[recipe.state], *recipe.actions)
                reached.append(recipe.to)
    return ways


_OUTSIDE, _FRESH = _ways(RECIPES), _ways(FRESH)

_PHASES: Mapping[Phase, Actions] = {
    "-": (),
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
    if shape.topology == "pd" and (way := _apart(state, phase, prompt, shape)):
        return way
    if state == "matched":
        return (
            *outside(prompt, shape), *_rivals(shape), Arrive(prompt, OUTPUT), Step()
        )  # fmt: skip
    fresh = fresh and state in _FRESH and shape.topology == "store"
    before = Hold("save") if (state, phase) == ("running", "under way") else None
    actions: list[Action] = [] if before is None else [before]
    actions += () if fresh else outside(prompt, shape)
    actions += begin(prompt, shape)
    actions += (_FRESH if fresh else _OUTSIDE)[state]
    actions += _PHASES[phase]
    if shape.topology == "pd":  # it goes on where it decodes
        begun = len(begin(prompt, shape))
        actions[begun:] = [
            dataclasses.replace(a, engine=1) if isinstance(a, Step | Reset) else a
            for a in actions[begun:]
        ]
    return tuple(actions)


def _apart(state: State, phase: Phase, prompt: Prompt, shape: Shape) -> Actions:
    """Ways that are others where prefill and decode are apart; empty: the same as elsewhere."""
    match state:
        case "deferred":  # what was pulled once is asked of the store
            return (*path("preempted", "-", prompt, shape), Busy(1), Step(1, 1))
        case "kept" if phase == "some ranks":  # those from which it has been pulled
            return (*begin(prompt, shape), Step(2, 1), Release(0), Step(2))
        case "kept":  # where it was prefilled
            return (Hold("save"), Arrive(prompt, OUTPUT), Step(4), *_PHASES[phase])
        case "matched":
            return (*_rivals(shape), Step(4), Step(3, 1), *begin(prompt, shape), Step(1, 1))
    return ()


def _rivals(shape: Shape) -> Actions:
    """Requests that fill a pool, and run."""
    left, size, actions = shape.num_blocks - 1, shape.block_size, list[Action]()
    while left > 0:
        blocks = min(left, 5 * max(1, 16 // size))
        # A few tokens before they need more.
        prompt = Prompt(900 + left, blocks * size - min(4, size // 4))
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
        case "embeds":
            return (Arrive(prompt, 4, embeds="x"),)
        case "corrupt":
            return (Corrupt(), Arrive(prompt, 4))
        case "restart":
            return (Restart(), Arrive(prompt, 4))
        case "redeploy":
            return (Redeploy("b"), Arrive(prompt, 4))
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
                Arrive(
                    Prompt(900 + i, 4 * shape.block_size - min(4, shape.block_size // 4)), OUTPUT
                )
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
            # The id of an older one while it is there, then its own.
            older = Arrive(prompt, 4, again=1)
            return (older, Abort(1), Step(2), Arrive(prompt, 4, again=0))
        case "handover":
            return (Arrive(prompt, 4),)
        case "expire":
            return (Lose(), Tick(3600.0))
        case "repeat":
            return (Repeat(),)
        case "peer-gone":
            return (Cut(),)
        case "slow-device":
            return (Stall(),)
        case "fail-copy":
            return (Break(2), Arrive(prompt, 4))
    raise ValueError(f"no way is known to bring {name} upon a request")


@functools.cache
def in_reach(
    packages: frozenset[str], topology: Topology, tight: bool, ranks: int = 1
) -> tuple[Cell, ...]:
    """What runs with these packages, and no others, should meet.

    Args:
        packages: fault packages of the run.
        topology: of its shape.
        tight: its pool may be too small for all.
        ranks: worker halves of an engine.
    """
    shape = Shape(topology=topology, engines=2 if topology == "pd" else 1)
    prompt = Prompt(0, 2 * shape.block_size)
    cells = []
    for name in NAMES:
        for state, phase in PAIRS:
            if name not in packages or (state == "matched" and not tight):
                continue  # where there is room for everyone nobody is passed over
            if name == "same-id" and topology == "pd":
                continue  # the legs of a request have names of their own there
            if (phase == "some ranks" and ranks == 1) or why(name, (state, phase)):
                continue
            way = (*path(state, phase, prompt, shape), *fault(name, prompt, shape))
            if {package_of(action) for action in way} - {None} <= packages:
                cells.append((name, state, phase))
    return tuple(cells)


def rarest(wanted: Sequence[Cell], seen: Counter[str], k: int) -> Cell:
    """The cell that was met k-th most seldom so far.

    Which of equals depends on all that was met. By their order the last ones would never come: in
    most units there are more cells than moves that are steered, and each begins with none met.
    """
    shuffled = random.Random(seen.total()).sample(wanted, len(wanted))
    return sorted(shuffled, key=lambda cell: seen["/".join(cell)])[k % len(wanted)]
