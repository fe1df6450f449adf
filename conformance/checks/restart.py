"""KVC-808: an engine that starts anew amid what its former life has left."""

from __future__ import annotations

from kvconform.conformance.checks.base import Check
from kvconform.scenario.trace import Event


class StartsAnew(Check):
    """KVC-808."""

    rule = "KVC-808"

    def on_scheduled(self, event: Event) -> None:
        again = self.ledger.restarts[event.engine] and self.ledger.faults["restart"]
        self.reached += bool(again and event.data["tokens"])

    def on_stayed_down(self, event: Event) -> None:
        self.fail(
            event, event.data["error"], where="__init__",
            expected="the engine starts again, with the configuration that it had",
            got=event.data["detail"],
            why="what its former life has left outside keeps it down until somebody clears it away",
        )  # fmt: skip

    def on_ran(self, event: Event) -> None:
        for direction in ("recving", "sending"):
            for name in sorted(event.data[direction]):
                facts = self.ledger.requests.get(name)
                if facts is not None and facts.died and facts.engine == event.engine:
                    self.fail(
                        event, f"of a former life, {direction}", request=name,
                        where=f"get_finished: finished_{direction}", side="worker half",
                        expected=f"nothing about {name}, which died with the engine before",
                        got=f"{name} in finished_{direction}",
                        why="vLLM's scheduler does not know it, and asserts: the engine core dies",
                    )  # fmt: skip


CHECKS = (StartsAnew,)
