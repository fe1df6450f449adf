"""VLL-xxx: what vLLM itself owes, and its asserts turned into the rules that they guard."""

from __future__ import annotations

from kvconform.conformance.checks.base import Check
from kvconform.conformance.cycle import REACHED
from kvconform.conformance.facts import BY_ITSELF
from kvconform.scenario.trace import Event

_LOOKUP = "get_num_new_matched_tokens"
_ASSERTS: tuple[tuple[str, str, str, str], ...] = (
    # function, source, rule, hook
    ("_update_from_kv_xfer_finished", "req_id in self.requests", "KVC-301", "get_finished"),
    ("_update_from_kv_xfer_finished", "is_finished(req.status)", "KVC-302", "get_finished"),
    ("_free_blocks", "request.is_finished()", "KVC-305", "get_finished"),
    ("schedule", "num_computed_tokens <= request.num_tokens", "KVC-102", _LOOKUP),
    ("schedule", "num_computed_tokens <= request.num_prompt_tokens", "KVC-102", _LOOKUP),
    ("schedule", "num_new_tokens > 0", "KVC-102", _LOOKUP),
    ("schedule", "num_external_computed_tokens > 0", "KVC-103", _LOOKUP),
    ("_get_kv_connector_output", "kv_connector_metadata is not None", "KVC-201",
     "build_connector_meta"),
)  # fmt: skip
"""vLLM's asserts that a connector can trip, and the rule that it broke then."""


def rule_of_assert(function: str, source: str) -> tuple[str, str] | None:
    """The rule behind one of vLLM's asserts, and the hook whose answer tripped it."""
    for where, text, rule, hook in _ASSERTS:
        if where in function and text in source:
            return rule, hook
    return None


_BEYOND = {
    "BeyondRequestsError": "computes a request that the workers do not know",
    "BeyondTokensError": "computes a token that is not there",
    "BeyondBlocksError": "computes into a block that is not there",
}
"""What vLLM asks of its workers that they cannot do."""


class Raises(Check):
    """VLL-001, or the rule that one of vLLM's asserts guards."""

    rule = "VLL-001"
    also = ("VLL-202", "KVC-010", *sorted({rule for _, _, rule, _ in _ASSERTS}))

    def on_scheduled(self, event: Event) -> None:
        self.reached += 1

    def on_broke(self, event: Event) -> None:
        data = event.data
        if data["error"] in _BEYOND:
            self.fail(
                event, _BEYOND[data["error"]], rule="VLL-202", where="schedule",
                expected="only requests, tokens and blocks that the workers have",
                got=data["message"], why="what the scheduler counts is not what it has said",
            )  # fmt: skip
            return
        if data["target"]:  # outside a hook: an object that the target has handed to vLLM
            self.fail(
                event, data["error"], rule="KVC-010", where=data["where"], side="worker half",
                expected="what a hook has handed to vLLM can be used",
                got=f"{data['error']}: {data['message']} ({data['where']}, line {data['line']}: "
                f"{data['source']})", why="the engine core dies with every request on it",
            )  # fmt: skip
            return
        text = f"{data['error']} {data['message']}".strip()
        got = f"{text} ({data['where']}, line {data['line']}: {data['source']})"
        found = rule_of_assert(data["where"], data["source"])
        if found is None or found[0] in self.tolerant:  # then nobody has broken what it guards
            self.fail(
                event, data["error"], expected="vLLM carries on", got=got, where=data["where"],
                why="the engine core dies",
            )  # fmt: skip
            return
        rule, hook = found
        self.fail(
            event, "vLLM asserts", rule=rule, where=hook, got=got,
            expected="an answer that vLLM's scheduler can work with",
            why="the engine core dies with every request on it",
        )  # fmt: skip


class FinishedOnce(Check):
    """VLL-102."""

    rule = "VLL-102"

    def on_hook(self, event: Event) -> None:
        if not event.data["name"].startswith("request_finished"):
            return
        facts = self.ledger.requests[event.request or ""]
        self.reached += 1
        if facts.ended:
            self.fail(
                event, "twice", where="request_finished",
                expected=f"request_finished once for {facts.name}", got="a second call",
                why="the connector may register a second send",
            )  # fmt: skip


class EndsInOrder(Check):
    """VLL-202: a request that waits for its KV cannot have reached its last token."""

    rule = "VLL-202"

    def on_hook(self, event: Event) -> None:
        if not event.data["name"].startswith("request_finished"):
            return
        facts = self.ledger.requests[event.request or ""]
        if facts.loading and event.data["status"] in BY_ITSELF:
            self.fail(
                event, "ends while it is loading", where="update_from_output",
                expected=f"no token of {facts.name}, which waits for remote KV",
                got=event.data["status"],
                why="a token of a step before its preemption ends it; its blocks are freed while "
                "they are written",
            )  # fmt: skip


class CommonBlocks(Check):
    """VLL-101: the second of the two bugs that this project began with."""

    rule = "VLL-101"

    def on_common(self, event: Event) -> None:
        data = event.data
        self.reached += 1
        for group, (said, common) in enumerate(zip(data["said"], data["common"], strict=True)):
            if common < said:
                self.fail(
                    event, "not common", where="schedule",
                    expected=f"the first {said} blocks of KV group {group} are the same in "
                    f"{', '.join(data['requests'])}",
                    got=f"only {common} are",
                    why="cascade attention reads them once for all: some requests read another "
                    "one's prefix",
                )  # fmt: skip


class FailedLoadsNotUsed(Check):
    """VLL-201: counts its provocation; the evidence comes to the content check."""

    rule = "VLL-201"

    def on_ran(self, event: Event) -> None:
        self.reached += bool(event.data["invalid"] or event.data["failed"])


class OwnBlocks(Check):
    """VLL-203: counts its provocation; the evidence comes to the content check."""

    rule = "VLL-203"

    def on_scheduled(self, event: Event) -> None:
        self.reached += bool(event.data["tokens"])


class NotGivenAway(Check):
    """VLL-401; further evidence comes with transfers."""

    rule = "VLL-401"

    def on_given(self, event: Event) -> None:
        facts = self.ledger.requests[event.request or ""]
        if facts.open:
            self.fail(
                event, "given away while kept", where="vLLM",
                expected=f"the blocks of {facts.name} are kept until it has been sent or loaded",
                got=f"block {event.data['blocks'][0]} is given to {event.data['to']}",
                why="another request's KV is saved under this one's key",
            )  # fmt: skip

    def on_admitted(self, event: Event) -> None:
        self.reached += bool(self.ledger.open_requests())


class OutputFollows(Check):
    """VLL-202: every delivered token is the one that the KV read gives."""

    rule = "VLL-202"

    def on_tokens(self, event: Event) -> None:
        assert event.request is not None
        facts = self.ledger.requests[event.request]
        self.reached += 1
        got = facts.delivered + event.data["tokens"]
        whole = list(facts.output)
        want = whole[: len(got)]
        ended = event.data["finish"] in ("length", "stop") and len(got) < len(whole)
        if got != want or ended:
            index = next((i for i, (a, b) in enumerate(zip(got, want, strict=False)) if a != b),
                         len(got))  # fmt: skip
            self.fail(
                event, "other tokens", where="update_from_output",
                expected=f"the output of the same request without a connector; token {index} is "
                f"{want[index] if index < len(want) else 'the end'}",
                got=f"{got[index] if index < len(got) else 'nothing'}, although the KV that was "
                "read was right, or had been reported as failed",
                why="the client gets wrong tokens, without an error",
            )  # fmt: skip


class FollowsTheCycle(Check):
    """VLL-104."""

    rule = "VLL-104"

    def on_admitted(self, event: Event) -> None:
        facts = self.ledger.requests.get(event.request or "")
        if facts is not None and facts.status is None:
            self.fail(
                event, "admitted after its end", where="schedule",
                expected=f"nothing for {facts.name}, which has ended and is forgotten",
                got="blocks were allocated for it, and its connector is to load into them",
                why="nobody gives them back, and what a connector does for it is for nobody",
            )  # fmt: skip

    def on_scheduled(self, event: Event) -> None:
        self.reached += bool(event.data["tokens"])
        self._look(event)

    def on_quiet(self, event: Event) -> None:
        self._look(event)

    def _look(self, event: Event) -> None:
        for state, to in self.ledger.walked.keys() - REACHED:
            self.fail(
                event, f"{state}, then {to}", where="schedule",
                expected=f"after '{state}' one of "
                + ", ".join(sorted(f"'{b}'" for a, b in REACHED if a == state)),
                got=f"'{to}'", why="what a connector knows of its requests no longer holds",
            )  # fmt: skip


class OneOfAnId(Check):
    """VLL-103."""

    rule = "VLL-103"

    def on_action(self, event: Event) -> None:
        action = event.data["action"]
        self.reached += action["do"] == "arrive" and action.get("again") is not None

    def on_status(self, event: Event) -> None:
        old, new = event.data["old"], event.data["new"]
        if old and new and old.startswith("FINISHED") and not new.startswith("FINISHED"):
            self.fail(
                event, "taken while in use", where="add_request",
                expected=f"{event.request} is taken again when its blocks have come back",
                got=f"{new}, while blocks of the request before it were kept ({old})",
                why="the scheduler forgets the old one: its blocks never come back, and its send "
                "completes the new one",
            )  # fmt: skip


class WakesUp(Check):
    """VLL-702."""

    rule = "VLL-702"

    def on_drain(self, event: Event) -> None:
        self.reached += any(f.delayed and not f.sent for f in self.ledger.alive())

    def on_never_woke(self, event: Event) -> None:
        """Called by the referee when an engine rested and no check objected to anything."""
        self.fail(
            event, "rests with blocks kept", where="has_requests",
            expected="the engine's loop goes on until finished_sending has come for "
            + ", ".join(event.data["held"]),
            got="it rests: nobody asks the connector any more",
            why="the blocks are not given back before the next request comes",
        )  # fmt: skip


class GoesOn(Check):
    """VLL-701: something is left although the connector owes nothing."""

    rule = "VLL-701"

    def on_drain(self, event: Event) -> None:
        self.reached += 1

    def on_stuck(self, event: Event) -> None:
        """Called by the referee when something is left that no other check objected to."""
        data = event.data
        self.fail(
            event, f"{data['what']} left", where="drain",
            expected="nothing is left after the drain",
            got=f"{data['what']}: {data['detail']}"
            + (f" of {event.request} ({data['status']})" if event.request else ""),
            why="the connector owes nothing, yet the engine does not come to rest",
        )  # fmt: skip


CHECKS = (
    CommonBlocks,
    EndsInOrder,
    FollowsTheCycle,
    FinishedOnce,
    FailedLoadsNotUsed,
    OwnBlocks,
    NotGivenAway,
    OutputFollows,
    OneOfAnId,
    GoesOn,
    WakesUp,
    Raises,
)
