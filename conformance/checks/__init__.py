"""The checks, one module per family; each check watches events for one rule.

A check never reaches into an engine: it sees events, and asks the ledger.
"""

from __future__ import annotations

from kvconform.conformance.checks import (
    apart,
    completion,
    composition,
    content,
    engine,
    failure,
    hooks,
    lookup,
    memory,
    metadata,
    progress,
    told,
    transfers,
)
from kvconform.conformance.checks.base import Check

ALL: tuple[type[Check], ...] = (
    *hooks.CHECKS,
    *transfers.CHECKS,
    *lookup.CHECKS,
    *metadata.CHECKS,
    *completion.CHECKS,
    *memory.CHECKS,
    *apart.CHECKS,
    *content.CHECKS,
    *failure.CHECKS,
    *progress.CHECKS,
    *composition.CHECKS,
    *told.CHECKS,
    *engine.CHECKS,
)
"""Every check, in the order in which they hear an event."""

__all__ = ["ALL", "Check"]
