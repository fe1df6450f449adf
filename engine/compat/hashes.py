"""What the installed vLLM's block hashes tell apart: asked of it, not known by its version."""

from __future__ import annotations

import functools
from typing import Any

from kvconform.engine.compat.build import build_request
from kvconform.scenario.identity import Identity

_BLOCK = 16

_PARTS: tuple[tuple[str, dict[str, Any], dict[str, Any]], ...] = (
    ("version", {"adapter": "x"}, {"adapter": "x", "version": 1}),
    ("media", {}, {"media": "x"}),
    ("embeds", {"embeds": "x"}, {"embeds": "y"}),
)
"""What not every release tells apart, and two identities that differ in nothing else."""


@functools.cache
def _told_apart() -> frozenset[str]:
    """Parts of an identity that block hashes cover."""

    def hashes(identity: Identity) -> list[Any]:
        return list(build_request("r", (3,) * _BLOCK, 1, identity, _BLOCK).block_hashes)

    return frozenset(
        part for part, one, other in _PARTS if hashes(Identity(**one)) != hashes(Identity(**other))
    )


def tells_apart(identity: Identity) -> bool:
    """Whether requests of this identity have block hashes that no other's have.

    Where they have not, KV is shared by vLLM itself, and that is no fault of a connector's.
    """
    return all(part in _told_apart() for part, *_ in _PARTS if getattr(identity, part))
