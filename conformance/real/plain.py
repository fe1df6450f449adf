"""What the model answers without a connector: the measure of every scene.

Sums of floating-point numbers depend on their order, and that on what else is computed in the same
step. So an answer in which two tokens were nearly as likely as each other proves nothing when it
comes out differently; prompts with such answers are not used.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from kvconform.conformance.real.process import EngineProcess, GoneError, HungError
from kvconform.scenario.errors import HarnessError

CLEAR = 1e-3
"""Log probability that the likeliest token has to be ahead by; what is computed in another order
differs by less than a hundredth of it."""

ANSWER = 12
"""Tokens of every answer."""

_BATCH = 16

Tokens = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer.

    Attributes:
        tokens: it.
        margin: by how much its closest choice was made.
    """

    tokens: Tokens
    margin: float

    @property
    def is_clear(self) -> bool:
        """Nobody who has read the same KV answers otherwise."""
        return self.margin >= CLEAR


class Plain:
    """The engine without a connector, which is asked and remembers.

    Args:
        engine: it.
    """

    def __init__(self, engine: EngineProcess) -> None:
        self._engine = engine
        self._known: dict[Tokens, Answer] = {}

    def answers(self, prompts: Iterable[Sequence[int]]) -> list[Answer]:
        """Their answers.

        Raises:
            HarnessError: the engine does not answer.
        """
        wanted = [tuple(prompt) for prompt in prompts]
        new = [p for p in dict.fromkeys(wanted) if p not in self._known]
        if new:
            requests = [
                {"name": f"plain-{i}", "tokens": p, "max_tokens": ANSWER, "margin": True}
                for i, p in enumerate(new)
            ]
            try:
                ended = self._engine.result(self._engine.ask("run", requests=requests))
            except (GoneError, HungError) as error:  # never a finding of the target
                raise HarnessError(f"the engine without a connector: {error}") from None
            for prompt, one in zip(new, ended, strict=True):
                self._known[prompt] = Answer(tuple(one["tokens"]), one["margin"])
        return [self._known[p] for p in wanted]

    def clear(self, prompts: Iterator[Tokens], count: int) -> list[Tokens]:
        """The first ``count`` prompts with clear answers.

        Raises:
            HarnessError: the answers do not depend on the prompts, so that they prove nothing.
        """
        found: list[Tokens] = []
        while len(found) < count:
            some = list(islice(prompts, _BATCH))
            found += [p for p, a in zip(some, self.answers(some), strict=True) if a.is_clear]
        found = found[:count]
        if count > 1 and len({a.tokens for a in self.answers(found)}) < 0.9 * count:
            raise HarnessError("the model gives one answer to many prompts: it proves nothing")
        return found
