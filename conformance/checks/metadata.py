"""KVC-2xx: what goes over the wire to the workers."""

from __future__ import annotations

from typing import Any, ClassVar

from kvconform.conformance.checks.base import Check
from kvconform.scenario.trace import Event


class _WireCheck(Check):
    """Hears of one problem on the wire; provoked by steps whose metadata describes a load."""

    problem: ClassVar[str]
    expected: ClassVar[str]
    why: ClassVar[str]

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._loads: set[int] = set()

    def on_admitted(self, event: Event) -> None:
        if event.data["external"] > 0:
            self._loads.add(event.engine)

    def on_scheduled(self, event: Event) -> None:
        if event.engine in self._loads:
            self._loads.discard(event.engine)
            self.reached += 1

    def on_wire(self, event: Event) -> None:
        if event.data["problem"] == self.problem:
            self.fail(
                event,
                self.problem,
                expected=self.expected,
                got=event.data["detail"],
                why=self.why,
                where=event.data.get("hook", "build_connector_meta"),
            )


class Pickles(_WireCheck):
    """KVC-201."""

    rule = "KVC-201"
    problem = "unpicklable"
    expected = "metadata that can be sent to the workers"
    why = "multi-process executors pickle it: the step cannot be dispatched"

    def on_hook(self, event: Event) -> None:
        if event.data["name"] == "build_connector_meta" and event.data["none"]:
            self.fail(
                event, "none", expected=self.expected, got="None", where="build_connector_meta",
                why="vLLM's worker asserts, and the engine core dies",
            )  # fmt: skip


class DoesNotAlias(_WireCheck):
    """KVC-202."""

    rule = "KVC-202"
    problem = "aliased"
    expected = "metadata that stays what it was when it was handed out"
    why = (
        "executors that do not pickle hand over the object itself: the worker sees a later step's "
        "state"
    )


class LeavesOutputAlone(_WireCheck):
    """KVC-203."""

    rule = "KVC-203"
    problem = "modified"
    expected = "the scheduler's output as it was"
    why = "scheduler and workers no longer agree about the step"


class HandedOverPlain(_WireCheck):
    """KVC-204."""

    rule = "KVC-204"
    problem = "params"
    expected = "kv_transfer_params of plain JSON data"
    why = "a router passes them on over HTTP: the other engine gets something else, or nothing"

    def on_scheduled(self, event: Event) -> None:
        return

    def on_forwarded(self, event: Event) -> None:
        self.reached += event.data["params"]


class LeavesRequestsAlone(_WireCheck):
    """KVC-107."""

    rule = "KVC-107"
    problem = "request"
    expected = "the request as it was, but for its kv_transfer_params"
    why = "the scheduler goes on with what the connector wrote"

    def on_scheduled(self, event: Event) -> None:
        return

    def on_hook(self, event: Event) -> None:
        if event.data["name"] == "get_num_new_matched_tokens" and event.request is not None:
            facts = self.ledger.requests.get(event.request)
            self.reached += facts is not None and facts.known >= self.ledger.shape.block_size


CHECKS = (Pickles, DoesNotAlias, LeavesOutputAlone, HandedOverPlain, LeavesRequestsAlone)
