"""Prompts of traffic that shares prefixes, as token ids: a pure function of seed and number."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from kvconform.conformance.real.environment import BLOCK
from kvconform.conformance.real.model import SWAP

_FIRST = 3
"""Below are the model's special tokens."""

FAMILIES = 6
_SYSTEM = (2 * BLOCK, 3 * BLOCK, 5 * BLOCK)
"""Lengths of what the prompts of a family begin with, in tokens."""

_TAILS = (1, 5, BLOCK - 1, BLOCK, BLOCK + 1, 40, 70, 110)


def drawn(label: str, count: int) -> list[int]:
    """``count`` tokens that are this label's own, none of which is a swapped one."""
    generator = random.Random(label)
    return [generator.randrange(_FIRST, SWAP) for _ in range(count)]


def traffic(seed: int, scene: str) -> Iterator[tuple[int, ...]]:
    """Prompts without end. Those of a family begin alike; scenes have no prompt in common."""
    number = 0
    while True:
        family = number % FAMILIES
        head = drawn(f"{seed} {scene} {family}", _SYSTEM[family % len(_SYSTEM)])
        tail = drawn(f"{seed} {scene} tail {number}", _TAILS[number % len(_TAILS)])
        yield (*head, *tail)
        number += 1


def pair(seed: int, scene: str, number: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Two prompts of one length that differ in their first two blocks, and in these only."""
    label = f"{seed} {scene} {number}"
    tail = drawn(f"{label} tail", BLOCK + 1 + number)
    mine, other = (drawn(f"{label} {which}", 2 * BLOCK) for which in ("mine", "other"))
    return (*mine, *tail), (*other, *tail)


def mixed(other: Sequence[int], mine: Sequence[int], loaded: int) -> tuple[int, ...]:
    """What an engine has read that loaded the first tokens' KV of one prompt, and has another."""
    return (*other[:loaded], *mine[loaded:])
