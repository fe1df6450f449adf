"""The stateful Hypothesis machine: each rule draws a move of one fault package and does it.

Hypothesis disables a random subset of rules in each run, which is the swarm; beside that each run
draws which packages its arrivals and meantimes may use. A run ends at the first violation; what
happens then is the caller's choice: exploration collects and goes on, a test raises.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from hypothesis import HealthCheck, Phase, Verbosity, seed, settings
from hypothesis import strategies as st
from hypothesis.database import DirectoryBasedExampleDatabase, ExampleDatabase
from hypothesis.stateful import (
    RuleBasedStateMachine,
    get_state_machine_test,
    initialize,
    rule,
)

from kvconform.conformance.draw import shapes
from kvconform.conformance.moves import STEERED, Move, Moves
from kvconform.conformance.run import Outcome, Run
from kvconform.conformance.steady import NAME as STEADY
from kvconform.conformance.units import MOVES
from kvconform.scenario.errors import RefusedError
from kvconform.scenario.target import Target

STEERING = 4
"""Rules of a machine that steer, beside one for each package: about one move in a run."""


def explorer_settings(examples: int, moves: int = MOVES) -> settings:
    """Hypothesis' settings for exploration: nothing is left to profiles or to ``CI``.

    No database and no shrinking: scenarios are stored and shrunk by ourselves. Equal seeds give
    equal examples (see ``steady``).
    """
    return settings(
        max_examples=examples,
        stateful_step_count=moves,
        backend=STEADY,
        database=None,
        derandomize=False,
        print_blob=False,
        phases=(Phase.generate,),
        deadline=None,
        suppress_health_check=list(HealthCheck),
        verbosity=Verbosity.quiet,
        report_multiple_bugs=False,
    )


def suite_settings(examples: int, folder: str | None = None) -> settings:
    """Hypothesis' settings for a test that raises: shrinks, and remembers in ``folder``."""
    database: ExampleDatabase | None = DirectoryBasedExampleDatabase(folder) if folder else None
    return settings(
        max_examples=examples,
        stateful_step_count=MOVES,
        database=database,
        derandomize=False,
        print_blob=True,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
    )


def make_machine(
    target: Target,
    packages: frozenset[str],
    fixed: Mapping[str, Any],
    ended: Callable[[Outcome], None],
    *,
    features: frozenset[str] = frozenset(),
    refused: Callable[[RefusedError], None] = lambda _: None,
    chats: bool = False,
    stop: Callable[[], bool] = lambda: False,
    composed: bool = False,
) -> type[RuleBasedStateMachine]:
    """A machine that explores one target.

    Args:
        target: the connector under test.
        packages: fault packages that runs may use.
        fixed: fields of the shape that are not drawn.
        ended: hears of each run's outcome.
        features: what the target claims.
        chats: whether the base traffic is chats, else strangers.
        refused: hears of shapes that the target does not serve.
        composed: the target is a child of a MultiConnector, before a companion or after it.
        stop: true makes every further run an empty one (the budget is used up).
    """

    seen: Counter[str] = Counter()
    """Cells that earlier runs of this machine have met: the next are steered to the others."""

    class Machine(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.run: Run | None = None

        @initialize(data=st.data(), shape=shapes(packages, fixed, features, composed))
        def begin(self, data: Any, shape: Any) -> None:
            if stop():
                return
            chosen = frozenset(p for p in sorted(packages) if data.draw(st.integers(0, 3)))
            self.moves = Moves(data.draw, chosen, shape, chats, seen)
            self.returns = data.draw(st.booleans())
            try:
                self.run = Run(target, shape)
            except RefusedError as error:
                refused(error)

        @rule(data=st.data())
        def traffic(self, data: Any) -> None:
            self.do(data, None)

        def do(self, data: Any, package: str | None) -> None:
            if self.run is not None and not self.run.halted:
                self.moves.draw = data.draw
                self.carry_out(self.moves.draw_move(package))

        def carry_out(self, move: Move) -> None:
            assert self.run is not None
            for action in move:
                if not self.run.do(action):
                    break

        def teardown(self) -> None:
            if self.run is None:
                return
            with self.run as run:
                if self.returns and not run.halted:
                    self.carry_out(self.moves.returns())
                run.drain()
                outcome = run.outcome()
            seen.update({"/".join(cell): n for cell, n in outcome.coverage.items()})
            ended(outcome)

    for package in sorted(packages):
        setattr(Machine, package.replace("-", "_"), _rule_for(package))
    for number in range(STEERING):
        setattr(Machine, f"{STEERED}_{number}", _rule_for(STEERED))
    Machine.__name__ = Machine.__qualname__ = f"Machine_{target.class_name}"
    return Machine


def _rule_for(package: str) -> Any:
    def move(self: Any, data: Any) -> None:
        self.do(data, package)

    move.__name__ = package.replace("-", "_")
    return rule(data=st.data())(move)


def explore(
    machine: type[RuleBasedStateMachine], examples: int, number: int, moves: int = MOVES
) -> None:
    """Run a machine's examples; equal numbers give equal examples."""
    test = get_state_machine_test(machine, settings=explorer_settings(examples, moves))
    seed(number)(test)()
