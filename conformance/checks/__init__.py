"""The checks, one module per family; each check watches events for one rule.

A check never reaches into an engine: it sees events, and asks the ledger.
"""

from __future__ import annotations

from kvconform.conformance.checks import (
    apart,
    completion,
    composition,
    content,
    device,
    engine,
    failure,
    groups,
    hooks,
    lookup,
    memory,
    metadata,
    observation,
    progress,
    restart,
    saving,
    sharing,
    told,
    transfers,
)
from kvconform.conformance.checks.base import Check

ALL: tuple[type[Check], ...] = (
    *composition.OF_THE_WHOLE,
    *hooks.CHECKS,
    *restart.CHECKS,
    *transfers.CHECKS,
    *lookup.CHECKS,
    *metadata.CHECKS,
    *completion.CHECKS,
    *memory.CHECKS,
    *apart.CHECKS,
    *saving.CHECKS,
    *sharing.CHECKS,
    *device.CHECKS,
    *content.CHECKS,
    *failure.CHECKS,
    *groups.CHECKS,
    *progress.CHECKS,
    *composition.CHECKS,
    *observation.CHECKS,
    *told.CHECKS,
    *engine.CHECKS,
)
"""Every check, in the order in which they hear an event."""

OF_A_CHILD: tuple[type[Check], ...] = (
    composition.LeavesItToOthers,
    *(check for check in ALL if check not in {*engine.CHECKS, *composition.OF_THE_WHOLE}),
)
"""Those that hear what one child of a composition is told."""

OF_A_COMPOSITION: tuple[type[Check], ...] = tuple(
    check for check in ALL if check is not observation.Announced
)
"""Those that hear what vLLM tells a composition; what it announces may be any child's."""

__all__ = ["ALL", "OF_A_CHILD", "OF_A_COMPOSITION", "Check"]
