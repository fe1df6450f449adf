"""KVC-8xx: the connector amid what else happens to an engine."""

from __future__ import annotations

from kvconform.conformance.checks.base import Check
from kvconform.scenario.trace import Event

_HOOK = "get_num_new_matched_tokens"


class ResetForgets(Check):
    """KVC-801."""

    rule = "KVC-801"

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self._reset: set[int] = set()

    def on_hook(self, event: Event) -> None:
        name, answer = event.data["name"], event.data.get("answer")
        if name == "reset_cache" and answer is True:
            self._reset.add(event.engine)
        if name != _HOOK or event.engine not in self._reset or event.request is None:
            return
        facts = self.ledger.requests[event.request]
        if facts.after or self.ledger.has_computed(facts):
            return  # what it finds was handed over to it, or it saved that itself
        now = self.ledger.known_since_reset(facts)
        self.reached += facts.known >= self.ledger.shape.block_size > now
        promised = answer[0] if isinstance(answer, tuple) else None
        if not isinstance(promised, int) or promised <= 0:
            return
        if event.data["local"] + promised > now:
            self.fail(
                event,
                "found again",
                expected=f"at most {now} tokens for {facts.name}: the connector has forgotten what "
                "was stored before its reset",
                got=f"{promised} beyond {event.data['local']} local ones",
                why="after an update of the weights, the old model's KV is served",
                where=_HOOK,
            )


CHECKS = (ResetForgets,)
