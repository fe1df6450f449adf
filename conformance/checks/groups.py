"""Rules of several KV groups: what a window has let go is left alone, what it needs is loaded."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from kvconform.conformance.checks.base import Check
from kvconform.scenario.trace import Event


class NamesFailedRequests(Check):
    """KVC-604."""

    rule = "KVC-604"

    def on_moved(self, event: Event) -> None:
        load = event.data["direction"] != "save"
        self.reached += load and bool(event.data["failed"]) and self.ledger.shape.groups > 1

    def on_ran(self, event: Event) -> None:
        data = event.data
        if data["invalid"] and self.ledger.shape.groups > 1:
            self.fail(
                event, "blocks named", where="get_block_ids_with_load_errors",
                expected="the requests whose loads failed, in failed_recving, and no block ids",
                got=f"block {min(data['invalid'])}",
                why="vLLM cannot tell whose block of which group that is: its scheduler raises, "
                "and the engine core dies",
            )  # fmt: skip
        early = sorted(data["failed"] - data["recving"])
        if early:
            self.fail(
                event, "failed, not received", where="get_transfer_results",
                expected=f"{early[0]} in finished_recving of the same answer",
                got=f"{early[0]} in failed_recving only",
                why="the request is rolled back, or ended, while its load still writes",
                request=early[0],
            )  # fmt: skip


class LeavesNullAlone(Check):
    """KVC-803."""

    rule = "KVC-803"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._with_null: set[str] = set()

    def on_admitted(self, event: Event) -> None:
        if event.request and any(0 in ids for ids in event.data["blocks"]):
            self._with_null.add(event.request)

    def on_opened(self, event: Event) -> None:
        data = event.data
        self.reached += data["direction"] != "save" and event.request in self._with_null
        if 0 in data["blocks"]:
            self.fail(
                event, f"{data['direction']} of the null block", where="build_connector_meta",
                expected=f"a {data['direction']} of blocks that {event.request} has",
                got="block 0, which stands for what a group with a window does not need",
                why="KV of nobody is kept under a key"
                if data["direction"] == "save"
                else "all tables share the block, and what is loaded there is lost",
            )  # fmt: skip


class LoadsEveryGroup(Check):
    """KVC-804."""

    rule = "KVC-804"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._moved: defaultdict[tuple[int, int | None, str], set[int]] = defaultdict(set)

    def on_admitted(self, event: Event) -> None:
        if event.data["external"] > 0:
            for key in [k for k in self._moved if (k[0], k[2]) == (event.engine, event.request)]:
                del self._moved[key]

    def on_moved(self, event: Event) -> None:
        if event.data["direction"] != "save":
            self._moved[event.engine, event.rank, event.request or ""].update(event.data["blocks"])

    def on_ran(self, event: Event) -> None:
        if self.ledger.shape.groups == 1:
            return
        for name in sorted(event.data["recving"] - event.data["failed"]):
            facts = self.ledger.requests.get(name)
            moved = self._moved.get((event.engine, event.rank, name))
            # Where nothing is seen to move, what attention reads has to tell.
            if moved is None or facts is None or not facts.loading or facts.ended:
                continue
            self.reached += 1
            left = set(facts.blocks) - moved
            if left:
                told = facts.planned
                unplanned = told is None or (bool(told) and not left <= told)
                self.fail(
                    event, "a block was left out", where="get_finished: finished_recving",
                    side="scheduler half" if unplanned else None,
                    expected=f"the load of {name} to fill all blocks that were allocated for it",
                    got=f"nothing was loaded into block {min(left)}",
                    why="vLLM takes the blocks of every group to be filled, reads them, and gives "
                    "them to others with the same prefix", request=name,
                )  # fmt: skip


CHECKS = (NamesFailedRequests, LeavesNullAlone, LoadsEveryGroup)
