"""KVC-504, 506, 507, 508: what makes KV different keeps it apart.

They count their provocations; the evidence comes to ``content``.
"""

from __future__ import annotations

from typing import ClassVar

from kvconform.conformance.checks.base import Check
from kvconform.scenario.identity import Part
from kvconform.scenario.trace import Event


class _Apart(Check):
    """Provoked by a lookup for tokens that only others had, whose KV differs in this part."""

    part: ClassVar[Part]

    def on_hook(self, event: Event) -> None:
        if event.data["name"] != "get_num_new_matched_tokens":
            return
        facts, size = self.ledger.requests[event.request or ""], self.ledger.shape.block_size
        self.reached += facts.foreign.get(self.part, 0) // size > facts.known // size


class TenantsApart(_Apart):
    """KVC-504."""

    rule = "KVC-504"
    part = "tenant"


class MediaApart(_Apart):
    """KVC-506."""

    rule = "KVC-506"
    part = "media"


class EmbedsApart(_Apart):
    """KVC-507."""

    rule = "KVC-507"
    part = "embeds"


class ModelsApart(_Apart):
    """KVC-508."""

    rule = "KVC-508"
    part = "model"


CHECKS = (TenantsApart, MediaApart, EmbedsApart, ModelsApart)
