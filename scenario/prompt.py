"""Prompts as three numbers; their tokens are a pure function of these.

A scenario never stores token lists. Two prompts of one family share their first
``min(length)`` tokens, and differ from there on when their tails differ: all that prefix caching
and connectors can see of a prompt.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

VOCABULARY = 500
"""Token ids lie in ``[FIRST_TOKEN, VOCABULARY)``."""

FIRST_TOKEN = 3
_MASK = (1 << 64) - 1


def mix64(value: int) -> int:
    """A 64-bit bijective mixer (the finaliser of the splitmix generator)."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def token_of(digest: int) -> int:
    """A token id from 64 mixed bits."""
    return FIRST_TOKEN + digest % (VOCABULARY - FIRST_TOKEN)


@dataclass(frozen=True, slots=True)
class Prompt:
    """``length`` tokens of the stream of ``family``, then ``tail`` tokens of its own.

    Attributes:
        family: prompts of one family share their stream.
        length: tokens taken from the family's stream.
        tail: number of tokens after it, which depend on family, length and tail.
    """

    family: int
    length: int
    tail: int = 0

    def __post_init__(self) -> None:
        if self.family < 0 or self.length < 0 or self.tail < 0 or self.length + self.tail < 1:
            raise ValueError("a prompt needs non-negative family, length and tail, and one token")

    @property
    def num_tokens(self) -> int:
        """Tokens in the prompt."""
        return self.length + self.tail

    @property
    def tokens(self) -> tuple[int, ...]:
        """The prompt's token ids."""
        return _tokens(self.family, self.length, self.tail)

    def __str__(self) -> str:
        return f"f{self.family}:{self.length}" + (f"+{self.tail}" if self.tail else "")


@functools.lru_cache(maxsize=4096)
def _tokens(family: int, length: int, tail: int) -> tuple[int, ...]:
    stream = [token_of(mix64((family << 20) | position)) for position in range(length)]
    seed = mix64((family << 40) | (length << 20) | tail)
    return tuple(stream + [token_of(mix64(seed + position)) for position in range(tail)])
