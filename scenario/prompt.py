"""Prompts as four numbers; their tokens are a pure function of these.

A scenario never stores token lists. Two prompts of one family share their first
``min(length)`` tokens, and differ from there on when their tails differ: all that prefix caching
and connectors can see of a prompt. The next turn of a chat holds the answer to the turn before,
which depends on whose model gave it: see :func:`follow`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass

from kvconform.scenario.identity import MEDIA_TOKENS, Identity

VOCABULARY = 500
"""Token ids lie in ``[FIRST_TOKEN, VOCABULARY)``."""

FIRST_TOKEN = 3

IMAGE_TOKEN = VOCABULARY
"""What stands for each token of an image: no text has it."""

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


@functools.lru_cache(maxsize=4096)
def _mixed(*parts: str | None) -> int:
    """64 bits that names determine."""
    seed = 1
    for part in parts:
        for byte in (part or "").encode():
            seed = mix64(seed ^ byte)
        seed = mix64(seed ^ (256 if part is None else 257))
    return seed


@functools.lru_cache(maxsize=4096)
def _seed(identity: Identity) -> int:
    """What all of a prompt's KV depends on; an image counts from its own position on."""
    whole = dataclasses.replace(identity, media=None, at=0)
    if whole == Identity():
        return mix64(0)
    version = str(identity.version) if identity.version else None
    return _mixed(identity.salt, identity.adapter, version, identity.embeds, identity.model or None)


def follow(
    prompt: Sequence[int], identity: Identity, num_outputs: int
) -> tuple[list[int], list[int]]:
    """What a right engine makes of a prompt.

    Returns:
        Prompt and output tokens; and one digest per position, 64 bits: a function of identity and
        of all tokens up to that position.
    """
    tokens, digests, digest = list(prompt), [], _seed(identity)
    at, image = (identity.at, _mixed(identity.media)) if identity.media is not None else (-1, 0)
    for position in range(len(prompt) + num_outputs):
        if position == len(tokens):
            tokens.append(token_of(digest))
        digest = mix64(digest ^ tokens[position])
        if position == at:
            digest = mix64(digest ^ image)
        digests.append(digest)
    return tokens, digests


@dataclass(frozen=True, slots=True)
class Prompt:
    """``length`` tokens of the stream of ``family``, what was answered, ``tail`` tokens of its own.

    Attributes:
        family: prompts of one family share their stream.
        length: tokens taken from the family's stream.
        tail: number of tokens at the end, which depend on family, length and tail.
        answer: number of tokens between these, which are what a right engine answers to the
            first ``length`` ones: an earlier turn's output.
    """

    family: int
    length: int
    tail: int = 0
    answer: int = 0

    def __post_init__(self) -> None:
        numbers = (self.family, self.length, self.tail, self.answer)
        if min(numbers) < 0 or self.num_tokens < 1 or (self.answer and not self.length):
            raise ValueError(
                "a prompt needs non-negative family, length, tail and answer, and one token; an "
                "answer needs a length"
            )

    @property
    def num_tokens(self) -> int:
        """Tokens in the prompt."""
        return self.length + self.answer + self.tail

    def tokens(self, identity: Identity = Identity()) -> tuple[int, ...]:  # noqa: B008 (frozen)
        """The prompt's token ids, for a request of this identity.

        Those of an image are the same for every image, and no others.
        """
        return _tokens(self, identity if self.answer or identity.media else Identity())

    def __str__(self) -> str:
        return f"f{self.family}:{self.length}" + "".join(
            f"{sign}{count}" for sign, count in (("~", self.answer), ("+", self.tail)) if count
        )


@functools.lru_cache(maxsize=4096)
def _tokens(prompt: Prompt, identity: Identity) -> tuple[int, ...]:
    family, length, tail = prompt.family, prompt.length, prompt.tail
    stream = _with_image([token_of(mix64((family << 20) | p)) for p in range(length)], identity)
    if prompt.answer:
        stream, _ = follow(stream, identity, prompt.answer)
    seed = mix64((family << 40) | (length << 20) | tail)
    stream += [token_of(mix64(seed + position)) for position in range(tail)]
    return tuple(_with_image(stream, identity))


def _with_image(tokens: list[int], identity: Identity) -> list[int]:
    """``tokens`` with those of the identity's image, as far as they reach."""
    if identity.media is None:
        return tokens
    where = range(identity.at, identity.at + MEDIA_TOKENS)
    return [IMAGE_TOKEN if position in where else t for position, t in enumerate(tokens)]
