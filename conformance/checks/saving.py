"""KVC-502, KVC-503, KVC-605: what gets into the store, and what becomes of it there."""

from __future__ import annotations

from kvconform.conformance.checks.base import Check
from kvconform.conformance.prefixes import Prefixes
from kvconform.scenario.trace import Event


class FailedSavesAreNotPromised(Check):
    """KVC-502: counts its provocation; torn KV that is read comes to ``content``."""

    rule = "KVC-502"

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self._failed = Prefixes()

    def on_moved(self, event: Event) -> None:
        facts = self.ledger.requests.get(event.request or "")
        if event.data["direction"] == "save" and event.data["failed"] and facts is not None:
            self._failed.add(facts.whole, facts.identity)

    def on_hook(self, event: Event) -> None:
        if event.data["name"] == "get_num_new_matched_tokens":
            facts = self.ledger.requests[event.request or ""]
            known, _ = self._failed.shared(facts.tokens, facts.identity)
            self.reached += known >= self.ledger.shape.block_size


class ComputedIsSaved(Check):
    """KVC-503."""

    rule = "KVC-503"

    def on_moved(self, event: Event) -> None:
        data = event.data
        facts = self.ledger.requests.get(event.request or "")
        if data["direction"] != "save" or facts is None or data["stale"]:
            return  # blocks of somebody else: KVC-401
        self.reached += facts.known >= self.ledger.shape.block_size
        if data["unwritten"]:
            self.fail(
                event, "not computed", where="transport",
                # What the step computes a rank may save too early; what it does not, it was told
                # to save.
                side="scheduler half" if data["planned"] and not data["counted"] else None,
                expected=f"blocks of {facts.name} that were computed or loaded whole",
                got=f"block {data['unwritten'][0]}, in which slots have not been written since it "
                "was handed out",
                why="whoever finds it reads what its block held before",
            )  # fmt: skip


class DamageIsNoticed(Check):
    """KVC-605: counts its provocation; damaged KV that is read comes to ``content``."""

    rule = "KVC-605"

    def on_corrupted(self, event: Event) -> None:
        self.reached += 1


CHECKS = (FailedSavesAreNotPromised, ComputedIsSaved, DamageIsNoticed)
