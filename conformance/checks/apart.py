"""KVC-307, KVC-403, KVC-603: what one engine keeps for another."""

from __future__ import annotations

from collections import Counter

from kvconform.conformance.checks.base import Check
from kvconform.conformance.facts import BY_ITSELF
from kvconform.scenario.trace import Event


class GivenBack(Check):
    """KVC-403; judged before time passes, so that no lease can have done it."""

    rule = "KVC-403"

    def on_admitted(self, event: Event) -> None:
        facts = self.ledger.requests[event.request or ""]
        data = event.data
        self.reached += bool(facts.after) and data["fresh"] and not data["external"]

    def on_hook(self, event: Event) -> None:
        if event.data["name"].startswith("request_finished"):
            facts = self.ledger.requests[event.request or ""]
            self.reached += bool(facts.after) and not event.data["blocks"]

    def on_idle(self, event: Event) -> None:
        if self.ledger.faults["peer-gone"] or self.ledger.faults["restart"]:
            return  # it may not have been reached, or nobody was left to tell it
        for name in event.data["held"]:
            facts = self.ledger.requests[name]
            decodes = self.ledger.requests.get(facts.then or "")
            if not facts.delayed or facts.sent or decodes is None or decodes.status is not None:
                continue
            if decodes.load_failed:
                continue
            loaded = decodes.load_is_async or decodes.blocks
            self.fail(
                event,
                "loaded, and kept all the same" if loaded else "not told",
                expected=f"the engine that prefilled {name} hears that its blocks are not needed "
                "any more",
                got=f"{decodes.name} has ended, and {name} is still kept",
                why="the blocks are missing until the lease runs out",
                where="update_state_after_alloc, request_finished",
                side="worker half" if loaded else None,
                request=name,
            )


class LeasesRunOut(Check):
    """KVC-603."""

    rule = "KVC-603"

    def on_idle(self, event: Event) -> None:
        self.reached += sum(
            self.ledger.deserted(self.ledger.requests[name]) for name in event.data["held"]
        )

    def on_action(self, event: Event) -> None:
        if event.data["action"]["do"] == "tick":
            self.reached += sum(map(self.ledger.deserted, self.ledger.alive()))

    def on_left(self, event: Event) -> None:
        facts = self.ledger.requests.get(event.request or "")
        if event.data["what"] == "request" and facts is not None and self.ledger.deserted(facts):
            self.fail(
                event,
                "kept for ever",
                expected=f"finished_sending for {facts.name} when its lease is over",
                got=f"{facts.name} is still kept after a year",
                why="its blocks never come back",
                where="get_finished: finished_sending",
                unsettled=("a clock that cannot be moved",) if event.data["foreign_clock"] else (),
            )


class HandsOver(Check):
    """KVC-307; judged where another request of no more blocks was handed over.

    Some connectors hand nothing over in the output, and some nothing short.
    """

    rule = "KVC-307"

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self._shortest: int | None = None
        self._silent: list[tuple[int, Event]] = []
        self._there: Counter[str] = Counter()  # tokens of each request, computed or loaded

    def on_admitted(self, event: Event) -> None:
        if event.data["fresh"]:
            self._there[event.request or ""] = event.data["local"] + event.data["external"]

    def on_scheduled(self, event: Event) -> None:
        self._there.update(event.data["tokens"])

    def on_hook(self, event: Event) -> None:
        data = event.data
        if not data["name"].startswith("request_finished"):
            return
        facts = self.ledger.requests[event.request or ""]
        if not facts.prefills or data["status"] not in BY_ITSELF or not any(data["blocks"]):
            return
        # Until 0.23 a preempted request may end with a token that was under way: without blocks, or
        # amid the prompt that it computes once more.
        if self._there[facts.name] < len(facts.tokens):
            return
        self.reached += 1
        full = len(facts.tokens) // self.ledger.shape.block_size
        if data["params"]:
            self._shortest = full if self._shortest is None else min(full, self._shortest)
        else:
            self._silent.append((full, event))
        for blocks, silent in self._silent:
            if self._shortest is not None and blocks >= self._shortest:
                self.fail(
                    silent,
                    silent.data["status"],
                    expected=f"kv_transfer_params of {silent.request}, which was to be prefilled",
                    got=f"None, after {silent.data['status']}",
                    why="the engine that decodes computes everything anew",
                    where="request_finished",
                )


CHECKS = (HandsOver, GivenBack, LeasesRunOut)
