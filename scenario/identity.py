"""Whose KV it is: requests of different identities must never share any."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Literal

MEDIA_TOKENS = 8
"""Tokens of a prompt that stand for an image, at most."""

ALL = sys.maxsize
"""So many leading positions: however many there are."""

Part = Literal["model", "embeds", "media", "tenant"]
"""What may tell two identities apart; a tenant is a salt or an adapter."""


@dataclass(frozen=True, slots=True)
class Identity:
    """What makes the KV of equal tokens different.

    Attributes:
        salt: the tenant's cache salt.
        adapter: name of the LoRA adapter that the request runs with.
        version: which adapter that name stands for: one may be loaded in place of another.
        media: the image in its prompt, if one is; KV differs from there on.
        at: the first position of that image.
        embeds: the encoder that made its prompt, if it came as embeddings instead of tokens.
        model: the model that its engine serves; empty: the one that engines begin with.
    """

    salt: str | None = None
    adapter: str | None = None
    version: int = 0
    media: str | None = None
    at: int = 0
    embeds: str | None = None
    model: str = ""

    def differs(self, other: Identity) -> Part | None:
        """What tells them apart, the coarsest first; None: they are equal."""
        if self.model != other.model:
            return "model"
        if self.embeds != other.embeds:
            return "embeds"
        mine = (self.salt, self.adapter, self.version)
        if mine != (other.salt, other.adapter, other.version):
            return "tenant"
        return "media" if self != other else None

    def agrees(self, other: Identity) -> int:
        """Leading positions whose KV is the same, if the tokens are."""
        match self.differs(other):
            case None:
                return ALL
            case "media":
                return min(one.at for one in (self, other) if one.media is not None)
            case _:
                return 0

    def __str__(self) -> str:
        parts = [
            f"{name} {value!r}"
            for name, value in (
                ("salt", self.salt),
                ("adapter", self.adapter),
                ("version", self.version or None),
                ("image", self.media),
                ("embeddings by", self.embeds),
                ("model", self.model or None),
            )
            if value is not None
        ]
        return " and ".join(parts) or "no salt"
