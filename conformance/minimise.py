"""Shrinks a failing scenario: fewer actions, smaller numbers, a simpler shape.

Keyed on the fingerprint, so that shrinking never drifts to another fault; bounded by a number of
runs. Deterministic: equal input gives equal output.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

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
    Flow,
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
    Tick,
)
from kvconform.scenario.scenario import Scenario
from kvconform.scenario.shape import Shape

Fails = Callable[[Scenario], bool]

MAX_RUNS = 600
"""Runs that one fingerprint may cost."""


_NEAR_DEFAULT: Mapping[str, tuple[Any, ...]] = {"tp": (2,), "engines": (2,)}
"""Values of the shape to try where the default does not do."""


class _SpentError(Exception):
    """The budget is used up."""


class Minimiser:
    """Shrinks one scenario.

    Args:
        fails: whether a candidate still shows the same fault.
        max_runs: how many candidates may be tried.
        fixed: fields of the shape that the target fixes.
    """

    def __init__(
        self, fails: Fails, max_runs: int = MAX_RUNS, fixed: frozenset[str] = frozenset()
    ) -> None:
        self._fails = fails
        self._left = max_runs
        self._fixed = fixed
        self._tried: set[Scenario] = set()

    def shrink(self, scenario: Scenario) -> Scenario:
        """The smallest failing scenario found within the budget."""
        best = scenario
        try:
            while True:
                before = best
                for step in (self._delete, self._shape, self._merge, self._numbers):
                    for smaller in step(best):
                        best = smaller
                if best == before:
                    return best
        except _SpentError as spent:
            return spent.args[0] or best

    def _try(self, best: Scenario, candidate: Scenario) -> bool:
        if candidate in self._tried:
            return False
        if not self._left:
            raise _SpentError(best)
        self._tried.add(candidate)
        self._left -= 1
        return self._fails(candidate)

    def _delete(self, best: Scenario) -> Iterator[Scenario]:
        """Delete chunks of actions, large ones first, from the end."""
        size = max(1, len(best.actions) // 2)
        while True:
            end = len(best.actions)
            while end > 0:
                start = max(0, end - size)
                rest = best.actions[:start] + best.actions[end:]
                candidate = Scenario(best.shape, rest)
                if self._try(best, candidate):
                    best = candidate
                    yield best
                end = start
            if size == 1:
                return
            size = max(1, size // 2)

    def _shape(self, best: Scenario) -> Iterator[Scenario]:
        """Set each field of the shape to its default, or to what is nearest to it."""
        for field in dataclasses.fields(Shape):
            if field.name in self._fixed:
                continue
            for value in (field.default, *_NEAR_DEFAULT.get(field.name, ())):
                if getattr(best.shape, field.name) == value:
                    break
                changes: dict[str, Any] = {field.name: value}
                try:
                    shape = dataclasses.replace(best.shape, **changes)
                except ValueError:
                    continue
                candidate = Scenario(shape, best.actions)
                if self._try(best, candidate):
                    best = candidate
                    yield best
                    break

    def _merge(self, best: Scenario) -> Iterator[Scenario]:
        """Join neighbouring steps of one engine."""
        index = 0
        while index + 1 < len(best.actions):
            a, b = best.actions[index : index + 2]
            if isinstance(a, Step) and isinstance(b, Step) and a.engine == b.engine:
                joined = Step(a.count + b.count, a.engine)
                actions = (*best.actions[:index], joined, *best.actions[index + 2 :])
                candidate = Scenario(best.shape, actions)
                if self._try(best, candidate):
                    best = candidate
                    yield best
                    continue
            index += 1

    def _numbers(self, best: Scenario) -> Iterator[Scenario]:
        """Lower the numbers of each action, one at a time."""
        for index in range(len(best.actions)):
            changed = True
            while changed:
                changed = False
                for action in simpler(best.actions[index]):
                    actions = (*best.actions[:index], action, *best.actions[index + 1 :])
                    candidate = Scenario(best.shape, actions)
                    if self._try(best, candidate):
                        best = candidate
                        yield best
                        changed = True
                        break


def simpler(action: Action) -> Iterator[Action]:
    """Simpler variants of an action, simplest first."""
    replace = dataclasses.replace
    match action:
        case Arrive(prompt, max_tokens, salt, engine, priority, adapter, _, stop):
            if salt is not None:
                yield replace(action, salt=None)
            if adapter is not None:
                yield replace(action, adapter=None)
            if action.version:
                yield replace(action, version=0)
            if action.media is not None:
                yield replace(action, media=None, media_at=0)
            if action.media_at:
                yield replace(action, media_at=0)
            if action.embeds is not None:
                yield replace(action, embeds=None)
            if engine:
                yield replace(action, engine=0)
            if priority:
                yield replace(action, priority=0)
            if stop is not None:
                yield replace(action, stop=None)
            for tokens in _lower(max_tokens, 1):
                yield replace(action, max_tokens=tokens)
            for answer in _lower(prompt.answer, 0):
                yield replace(action, prompt=replace(prompt, answer=answer))
            for tail in _lower(prompt.tail, 0):
                if prompt.length + tail:
                    yield replace(action, prompt=replace(prompt, tail=tail))
            for length in _lower(prompt.length, 1):
                yield replace(action, prompt=replace(prompt, length=length))
            for family in _lower(prompt.family, 0):
                yield replace(action, prompt=replace(prompt, family=family))
        case Abort(request, mid_step):
            if mid_step:
                yield replace(action, mid_step=False)
            for k in _lower(request, 0):
                yield replace(action, request=k)
        case Step(count, engine):
            if engine:
                yield replace(action, engine=0)
            for k in _lower(count, 1):
                yield replace(action, count=k)
        case Hold(direction, rank):
            if rank is not None:
                yield replace(action, rank=None)
            if direction != "any":
                yield replace(action, direction="any")
        case Release(transfer):
            if transfer is not None:
                yield Release()
                for k in _lower(transfer, 0):
                    yield Release(k)
        case Busy(lookups):
            for k in _lower(lookups, 1):
                yield Busy(k)
        case Refuse(saves):
            for k in _lower(saves, 1):
                yield Refuse(k)
        case Forget(lookups):
            for k in _lower(lookups, 1):
                yield Forget(k)
        case Corrupt(lookups, rank):
            if rank is not None:
                yield replace(action, rank=None)
            for k in _lower(lookups, 1):
                yield replace(action, lookups=k)
        case Restart(engine, clean):
            if engine:
                yield replace(action, engine=0)
            if not clean:
                yield replace(action, clean=True)
        case Redeploy(model, block_size, tp):
            if block_size:
                yield replace(action, block_size=0)
            if tp:
                yield replace(action, tp=0)
            if model:
                yield replace(action, model="")
        case Drop(transfer):
            for k in _lower(transfer, 0):
                yield Drop(k)
        case Repeat(handover):
            for k in _lower(handover, 0):
                yield Repeat(k)
        case Fail(transfers, blocks, rank):
            if rank is not None:
                yield replace(action, rank=None)
            if blocks != "all":
                yield replace(action, blocks="all")
            for k in _lower(transfers, 1):
                yield replace(action, transfers=k)
        case Stall(streams, rank):
            if rank is not None:
                yield replace(action, rank=None)
            if streams != "any":
                yield replace(action, streams="any")
        case Flow(work, newest_first):
            if newest_first:
                yield replace(action, newest_first=False)
            if work is not None:
                yield replace(action, work=None)
                for k in _lower(work, 1):
                    yield replace(action, work=k)
        case Break(copies, late, rank):
            if rank is not None:
                yield replace(action, rank=None)
            if not late:
                yield replace(action, late=True)
            for k in _lower(copies, 1):
                yield replace(action, copies=k)
        case Tick(seconds):
            for more in (1.0, 61.0):
                if more < seconds:
                    yield Tick(more)
        case Lose(handover):
            for k in _lower(handover, 0):
                yield Lose(k)
        case Cut(engine, back):
            if engine:
                yield Cut(0, back)
        case Reset(running, connector, engine):
            if connector:
                yield replace(action, connector=False)
            if running:
                yield replace(action, running=False)
            if engine:
                yield replace(action, engine=0)


def _lower(value: int, floor: int) -> Iterator[int]:
    """Smaller numbers to try: the floor, halves, multiples of a block, the one below."""
    seen = {value}
    for lower in (floor, value // 2, value // 16 * 16, value // 16 * 16 + 1, value - 1):
        if floor <= lower < value and lower not in seen:
            seen.add(lower)
            yield lower
