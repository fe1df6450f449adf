"""Whose KV it is: requests of different identities must never share any."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Identity:
    """What makes the KV of equal tokens different.

    Attributes:
        salt: the tenant's cache salt.
        adapter: name of the LoRA adapter that the request runs with.
    """

    salt: str | None = None
    adapter: str | None = None

    def __str__(self) -> str:
        parts = [
            f"{name} {value!r}" for name, value in (("salt", self.salt), ("adapter", self.adapter))
            if value is not None
        ]  # fmt: skip
        return " and ".join(parts) or "no salt"
