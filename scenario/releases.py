"""The vLLM releases that kvconform was measured on, oldest first."""

from __future__ import annotations

import re

RELEASES = (
    "0.11.0",
    "0.11.2",
    "0.13.0",
    "0.17.0",
    "0.18.0",
    "0.20.2",
    "0.23.0",
    "0.27.1",
    "0.32.0",
    "0.33.0",
)


def release(version: str) -> tuple[int, ...]:
    """``0.32.0rc1+cpu`` as (0, 32, 0), to compare; empty when it is no version."""
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def within(version: str, since: str, until: str) -> bool:
    """Whether a version is in a range; an empty end is open, and so is what says nothing."""
    number = release(version)
    if not number:
        return True
    return (not since or release(since) <= number) and (not until or number <= release(until))
