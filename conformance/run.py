"""One run: a target, a shape, actions, the drain, and what came of it."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from kvconform.conformance.interpreter import Interpreter
from kvconform.conformance.jury import Jury
from kvconform.conformance.objection import error_for
from kvconform.engine import compat
from kvconform.engine.cluster import Cluster
from kvconform.engine.engine import HaltedError
from kvconform.faults.devices import make_device
from kvconform.faults.transport import make_world
from kvconform.scenario.actions import Action, Stop
from kvconform.scenario.scenario import Scenario
from kvconform.scenario.shape import Shape
from kvconform.scenario.target import Target
from kvconform.scenario.trace import Trace
from kvconform.scenario.violation import Violation


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a run.

    Attributes:
        scenario: the actions that were done, with the shape.
        violation: the first rule broken, if one was.
        reached: per rule, how often it was provoked.
        coverage: (fault, request state, transfer phase) that occurred.
        steps: engine steps.
        checked_steps: those that scheduled a token or carried a connector event.
        trace: everything observed.
    """

    scenario: Scenario
    violation: Violation | None
    reached: Counter[str]
    coverage: Counter[tuple[str, str, str]]
    steps: int
    checked_steps: int
    trace: Trace


watcher: Callable[[dict[str, Any] | None], None] | None = None
"""Told of the scenario so far before each action is done: who dies in one can be reproduced."""


class Run:
    """A run that is driven from outside, action by action.

    Use as a context manager: leaving it only cleans up, it never judges.

    Raises:
        UsageError: the target cannot be set up.
    """

    def __init__(self, target: Target, shape: Shape | None = None) -> None:
        self.target = target
        self.shape = shape or Shape()
        self.trace = Trace()
        self.referee = Jury(target, self.shape, compat.vllm_version())
        self.trace.listen(self.referee.hear)
        self.actions: list[Action] = []
        self.halted = False
        self._closed = False
        self._watch()
        self._cluster = Cluster(
            target, self.shape, make_world(target.world), self.trace, self.referee.over,
            make_device(target.device),
        )  # fmt: skip
        self._interpreter = Interpreter(self._cluster)

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def violation(self) -> Violation | None:
        """The first rule broken, if one was."""
        return self.referee.violation

    def do(self, action: Action) -> bool:
        """Do one action; False when the run is over (then nothing is done)."""
        if self.halted:
            return False
        self.actions.append(action)
        self._watch()
        try:
            self._interpreter.do(action)
        except HaltedError:
            self.halted = True
        else:
            self.halted = self.referee.over() or isinstance(action, Stop)
        return not self.halted

    def _watch(self) -> None:
        if watcher is not None:
            watcher(Scenario(self.shape, tuple(self.actions)).to_json())

    def drain(self) -> None:
        """Faults off, step until nothing is left, look for what is left over, and shut down."""
        if self.halted:
            return
        with contextlib.suppress(HaltedError):
            self._cluster.drain()
            if not self.referee.over():
                self._cluster.stop()
        self.halted = True
        self.referee.conclude()

    def verify(self) -> None:
        """Drain, and raise what was found.

        Raises:
            ViolationError: a rule was broken.
        """
        self.drain()
        if self.violation is not None:
            raise error_for(self.violation)

    def outcome(self) -> Outcome:
        """What came of it so far."""
        ledger = self.referee.ledger
        return Outcome(
            Scenario(self.shape, tuple(self.actions)),
            self.violation,
            self.referee.reached(),
            Counter(ledger.coverage),
            ledger.steps,
            ledger.checked_steps,
            self.trace,
        )

    def close(self) -> None:
        """Clean up; may be called twice."""
        if not self._closed:
            self._closed = True
            self._cluster.close()


def play(target: Target, scenario: Scenario) -> Outcome:
    """Do all actions of a scenario and drain: equal scenarios give equal outcomes."""
    with Run(target, scenario.shape) as run:
        for action in scenario.actions:
            if not run.do(action):
                break
        run.drain()
        return run.outcome()
