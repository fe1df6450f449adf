"""Who arrives in a run, and the steps that follow: what moves are made of.

It counts arrivals, so that prompts of strangers share nothing with any other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hypothesis import strategies as st

from kvconform.conformance.draw import Draw, lengths, priorities, stops
from kvconform.conformance.traffic import Traffic
from kvconform.scenario.actions import Action, Arrive, Step
from kvconform.scenario.prompt import Prompt
from kvconform.scenario.shape import Shape

Move = tuple[Action, ...]

RARE = 1000
"""Families from here on are never drawn twice: prompts that share nothing."""

IDENTITIES: tuple[Mapping[str, Any], ...] = (
    {},
    {"salt": "a"},
    {"salt": "b"},
    {"adapter": "x"},
    {"salt": "a", "adapter": "x"},
    {"adapter": "x", "version": 1},
    {"media": "cat"},
    {"media": "dog"},
    {"media": "cat", "media_at": 20},
    {"media": "dog", "media_at": 20},
)
"""Salts, adapters, images; no two of one name, which vLLM's hashes do not tell apart until 0.27."""


class Arrivals:
    """Draws who arrives.

    Args:
        draw: draws.
        packages: fault packages that the run may use.
        shape: of the run.
    """

    def __init__(self, draw: Draw, packages: frozenset[str], shape: Shape) -> None:
        self.draw = draw
        self.packages = packages
        self.shape = shape
        self.size = shape.block_size
        self._fresh = 0
        self._traffic: Traffic | None = None

    # -- steps ------------------------------------------------------------------------------------

    def _steps(self, most: int = 4) -> Move:
        """Some steps of some engine; where prefill and decode are apart, often of both."""
        count = self.draw(st.integers(1, most))
        engine = self.draw(st.integers(0, self.shape.engines - 1))
        if self.shape.topology == "pd" and engine and self.draw(st.booleans()):
            return (Step(count, 0), Step(count, engine))
        return (Step(count, engine),)

    def _home(self, arrive: Arrive) -> int:
        """The engine that a request ends in."""
        if self.shape.topology == "pd":
            return 1 + arrive.engine % (self.shape.engines - 1)
        return arrive.engine

    def _through(self, arrive: Arrive, count: int) -> Move:
        """Steps of the engines that a request passes through."""
        home = Step(count, self._home(arrive))
        return (Step(count, 0), home) if self.shape.topology == "pd" else (home,)

    # -- arrivals ---------------------------------------------------------------------------------

    def _family(self) -> int:
        """A family of prompts that nobody had."""
        self._fresh += 1
        return RARE + self._fresh

    def _stranger(self) -> Arrive:
        """A request whose prompt nobody had and nobody will have."""
        return Arrive(
            Prompt(self._family(), self.draw(lengths(self.size))),
            self.draw(st.sampled_from((1, 2, 4, 20))),
            engine=self.draw(st.integers(0, 1)),
            priority=self.draw(priorities()),
            stop=self.draw(stops()),
        )

    def _returning(self, tenants: bool = False) -> Arrive:
        """A request whose prompt others have, whole or in part, or with what was answered."""
        tail = self.draw(st.sampled_from((0, 0, 0, 1, self.size + 1)))
        answer = self.draw(st.sampled_from((0, 0, 0, 1, 19)))
        whose = self.draw(st.sampled_from(IDENTITIES)) if tenants else {}
        return Arrive(
            Prompt(self.draw(st.integers(0, 1)), self.draw(lengths(self.size)), tail, answer),
            self.draw(st.sampled_from((1, 2, 4, 20))),
            engine=self.draw(st.integers(0, 1)),
            priority=self.draw(priorities()),
            stop=self.draw(stops()),
            **whose,
        )

    def _turn(self) -> Arrive:
        """The next turn of a chat."""
        if self._traffic is None:
            number = self.draw(st.integers(0, 1 << 16))
            self._traffic = Traffic(number, tenants="tenants" in self.packages)
        return self._traffic.next()

    def _arrival(self) -> Arrive:
        """Whatever arrives in this run."""
        kinds: list[Callable[[], Arrive]] = [self._stranger]
        if "full-hit" in self.packages:
            kinds += [self._returning] * 3
            kinds.append(self._turn)
        if "tenants" in self.packages:
            kinds.append(lambda: self._returning(tenants=True))
        return self.draw(st.sampled_from(kinds))()
