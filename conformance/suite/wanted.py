"""What a test run asks for, by options or by the attributes of a class: plain data."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Wanted:
    """A check to be made; the fields hold what the options of the same names are given.

    Attributes:
        processes: how many the target lives in; no result depends on it.
    """

    target: str
    profile: str | None = None
    level: str = "L3"
    faults: str = "all"
    shape: str = ""
    examples: int = 200
    seed: int = 1
    budget: str | None = None
    role: str | None = None
    extra: str | None = None
    known: str | None = None
    tolerant: str = ""
    device: str | None = None
    processes: int = 1

    @property
    def key(self) -> str:
        """Equal for checks that give equal results."""
        fields = dataclasses.asdict(self)
        del fields["processes"]
        return hashlib.sha256(json.dumps(fields).encode()).hexdigest()[:16]
