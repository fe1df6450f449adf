"""KVC-6xx: failed loads are reported, in time, and nothing else is."""

from __future__ import annotations

from kvconform.conformance.checks.base import Check
from kvconform.scenario.trace import Event


class FailuresReported(Check):
    """KVC-601; a failure that nobody reported may also come to light when attention reads it."""

    rule = "KVC-601"

    def on_moved(self, event: Event) -> None:
        self.reached += bool(event.data["failed"]) and event.data["direction"] != "save"

    def on_ran(self, event: Event) -> None:
        reported = event.data["invalid"]
        for name in sorted(event.data["recving"] - event.data["failed"]):
            missing = sorted(
                block
                for (engine, rank, block), owner in self.ledger.unreported.items()
                if owner == name
                and (engine, rank) == (event.engine, event.rank)
                and block not in reported
            )
            if missing:
                self.fail(
                    event, "reported as loaded",
                    expected=f"block {missing[0]}, whose load for {name} failed, reported no later "
                    "than its completion",
                    got=f"{name} in finished_recving, and no word of the block",
                    why="vLLM publishes the blocks and computes with them",
                    where="get_block_ids_with_load_errors", request=name,
                )  # fmt: skip


class OnlyOwnBlocks(Check):
    """KVC-602."""

    rule = "KVC-602"

    def on_ran(self, event: Event) -> None:
        if not event.data["invalid"] and not event.data["failed"]:
            return
        self.reached += 1
        self._judge_requests(event)
        loads = {
            block
            for facts in self.ledger.requests.values()
            if facts.engine == event.engine
            and (facts.loading or (facts.load_step == event.step and not facts.load_is_async))
            for block in facts.blocks
        }
        strange = sorted(event.data["invalid"] - loads)
        if strange:
            self.fail(
                event, "not a load's block",
                expected="only blocks of loads that are open, or that this step had to wait for",
                got=f"block {strange[0]}",
                why="vLLM rolls back, or fails, every request that holds the block",
                where="get_block_ids_with_load_errors",
            )  # fmt: skip

    def _judge_requests(self, event: Event) -> None:
        for name in sorted(event.data["failed"]):
            facts = self.ledger.requests.get(name)
            if facts is not None and not facts.loading:
                self.fail(
                    event, "not loading",
                    expected="only requests whose load is open",
                    got=f"{name} in failed_recving",
                    why="vLLM keeps the word for the next load of the request",
                    where="get_transfer_results", request=name,
                )  # fmt: skip


CHECKS = (FailuresReported, OnlyOwnBlocks)
