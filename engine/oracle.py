"""What the KV of a token must be, as bytes, and which token comes next.

The KV of a slot is a pure function of the token prefix, the request's identity (salt, adapter,
media, embeddings, model), the layer, K or V, and the *global* KV head. It is compared as bytes, so
nothing that merely looks alike passes. The next token is a function of the same prefix; so the
output of any run must equal the output of the same request without a connector, and is known in
advance.

A slot's KV is four 64-bit words per head: two of K, two of V. Every 32-bit half is the pattern of
a finite normal float, so that no copy through float registers alters it.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from kvconform.scenario.identity import Identity
from kvconform.scenario.prompt import follow, mix64, token_of

WORDS = 4
"""64-bit words of KV per token and head (2 * HEAD_SIZE float32)."""

Words = npt.NDArray[np.uint64]

_CLEAR = np.uint64(0xBFFFFFFFBFFFFFFF)
_SET = np.uint64(0x2000000020000000)
_POISON_HIGH = 0x2BAD
_LANES = np.arange(1, WORDS + 1, dtype=np.uint64) * np.uint64(0xD1342543DE82EF95)


def _mix(values: Words) -> Words:
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def words_of(digests: Words, layer: int, head: int) -> Words:
    """The KV words of positions with these digests: shape ``(len(digests), WORDS)``."""
    key = np.uint64(mix64((layer << 8) | head))
    with np.errstate(over="ignore"):
        mixed = _mix((digests ^ key)[:, None] ^ _LANES)
    return (mixed & _CLEAR) | _SET


def poison(engine: int, blocks: Sequence[int], epochs: Sequence[int]) -> Words:
    """One word per block: what an unwritten slot holds; tells engine, block and epoch."""
    return np.array(
        [
            (_POISON_HIGH << 48) | (b << 32) | 0x20000000 | ((engine & 0xF) << 20) | (e & 0xFFFFF)
            for b, e in zip(blocks, epochs, strict=True)
        ],
        dtype=np.uint64,
    )


TORN = 0x2DEAD7072DEAD707
"""A word of a block's second half, of which only the first has arrived."""

UNFILLED = 0x2FEEDCAB2FEEDCAB
"""A word of the host's memory that a copy of a device is to fill, and has not yet."""

ROTTEN = 0x2FADB1752FADB175
"""A word of a block that was damaged where it lay."""


def unpoison(word: int) -> tuple[int, int, int] | None:
    """``(engine, block, epoch)`` when ``word`` is poison."""
    if word >> 48 != _POISON_HIGH or (word >> 28) & 0xF != 2:
        return None
    return (word >> 20) & 0xF, (word >> 32) & 0xFFFF, word & 0xFFFFF


class Stream:
    """A token sequence of one identity, and all that follows from it.

    Attributes:
        tokens: prompt, then the output that a right engine gives; as vLLM has them, so that a
            prompt of embeddings is zeros.
        identity: whose it is.
        digests: one per position; a function of identity and of all tokens up to that position.
    """

    __slots__ = ("_branch", "_heads", "_words", "digests", "identity", "tokens")

    def __init__(self, tokens: list[int], identity: Identity, digests: Words) -> None:
        self.tokens = tokens
        self.identity = identity
        self.digests = digests
        self._branch: Stream | None = None
        self._words: dict[tuple[int, int], Words] = {}
        self._heads: dict[tuple[int, tuple[int, ...]], Words] = {}

    def branch(self, tokens: Sequence[int]) -> Stream:
        """What follows from other tokens, which are this one's at first, and all of its prompt."""
        if self._branch is None or self._branch.tokens != tokens:
            pairs = zip(tokens, self.tokens, strict=False)
            shared = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
            digests = list(map(int, self.digests[:shared]))
            for token in tokens[shared:]:
                digests.append(mix64(digests[-1] ^ token))
            self._branch = Stream(list(tokens), self.identity, np.array(digests, dtype=np.uint64))
        return self._branch

    def words(self, layer: int, head: int) -> Words:
        """KV words of every position: shape ``(len(tokens), WORDS)``."""
        found = self._words.get((layer, head))
        if found is None:
            found = self._words[layer, head] = words_of(self.digests, layer, head)
        return found

    def words_of_heads(self, layer: int, heads: tuple[int, ...]) -> Words:
        """The same for several heads: shape ``(len(heads), len(tokens), WORDS)``."""
        found = self._heads.get((layer, heads))
        if found is None:
            found = np.stack([self.words(layer, head) for head in heads])
            self._heads[layer, heads] = found
        return found

    def next_token(self, length: int) -> int:
        """The token that follows the first ``length`` tokens."""
        return token_of(int(self.digests[length - 1]))


@functools.lru_cache(maxsize=2048)
def stream(prompt: tuple[int, ...], identity: Identity, num_outputs: int) -> Stream:
    """The stream of a request; cached, for prompts return again and again."""
    tokens, digests = follow(prompt, identity, num_outputs)
    if identity.embeds is not None:
        tokens[: len(prompt)] = [0] * len(prompt)
    return Stream(tokens, identity, np.array(digests, dtype=np.uint64))
