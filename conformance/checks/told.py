"""VLL-xxx: what vLLM tells its workers, and what it lets other requests find."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from kvconform.conformance.checks.base import Check
from kvconform.scenario.trace import Event

_ASKS = ("get_finished", "get_transfer_results")
"""Hooks in which a rank hears of ends; the second calls the first."""


class EndsAreTold(Check):
    """VLL-105."""

    rule = "VLL-105"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._ended: defaultdict[int, set[str]] = defaultdict(set)  # since the last step
        self._told: dict[int, frozenset[str]] = {}  # what this step's ranks have to hear

    def on_hook(self, event: Event) -> None:
        name = event.data["name"]
        if name.startswith("request_finished"):
            self.reached += 1
            self._ended[event.engine].add(event.request or "")
        elif name in _ASKS and event.rank is not None:
            want = self._told.get(event.engine, frozenset())
            self._compare(event, event.data["finished"], want, f"rank {event.rank}")

    def on_scheduled(self, event: Event) -> None:
        want = frozenset(self._ended.pop(event.engine, ()))
        self._told[event.engine] = want
        self._compare(event, event.data["finished"], want, "the step")

    def on_restarted(self, event: Event) -> None:
        self._ended.pop(event.engine, None)  # whom it knew has died with it
        self._told.pop(event.engine, None)

    def on_redeployed(self, event: Event) -> None:
        self._ended.clear()
        self._told.clear()

    def _compare(self, event: Event, got: set[str], want: frozenset[str], who: str) -> None:
        for name in sorted(want ^ got):
            told = name in got
            self.fail(
                event, "told again" if told else "not told", where="schedule", request=name,
                expected=f"that {name} has ended once in finished_req_ids, in the step after",
                got=f"{who} names it, and it did not end since the step before"
                if told
                else f"{who} does not name it",
                why="workers let go of what they keep for a request when they hear of its end",
            )  # fmt: skip


class NotFoundWhileLoading(Check):
    """VLL-204."""

    rule = "VLL-204"

    def on_admitted(self, event: Event) -> None:
        data = event.data
        loading = [
            f for f in self.ledger.open_requests()
            if f.engine == event.engine and f.loading and not f.ended and f.name != event.request
        ]  # fmt: skip
        self.reached += bool(loading)
        if not data["fresh"]:
            return
        size = self.ledger.shape.block_size
        found = {block for group in data["blocks"] for block in group[: data["local"] // size]}
        for facts in loading:
            early = sorted(found.intersection(facts.blocks) - {0})  # 0 is the null block
            if early:
                self.fail(
                    event, "found while it is loaded", where="schedule",
                    expected=f"blocks of {facts.name} can be found when its load was received",
                    got=f"block {early[0]} is a local hit of {event.request}",
                    why="attention reads what has not arrived yet",
                )  # fmt: skip


class ResetsAtLast(Check):
    """VLL-402."""

    rule = "VLL-402"

    def on_quiet(self, event: Event) -> None:
        self.reached += 1

    def on_left(self, event: Event) -> None:
        if event.data["what"] == "prefix cache":
            self.fail(
                event, "not reset", where="reset_prefix_cache",
                expected="the prefix cache can be reset when nothing is left to do, and is empty",
                got=event.data["detail"],
                why="KV of other weights is found, or nobody can change them",
            )  # fmt: skip


CHECKS = (EndsAreTold, NotFoundWhileLoading, ResetsAtLast)
