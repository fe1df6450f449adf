"""A check as JSON data, made by hand: every result of a rule, in texts full of markup."""

from __future__ import annotations

from typing import Any

from kvconform.scenario.actions import Arrive, Step
from kvconform.scenario.prompt import Prompt
from kvconform.scenario.scenario import Scenario
from kvconform.scenario.trace import Event, Kind
from kvconform.scenario.violation import Fingerprint, Side, Violation

MARKUP = '<b id="raw">&amp; *bold* `code` [a](b) \x1b\x00 \ud800 é</b>'
"""What a target could put into a name or an exception: markup, control characters, half a pair."""

SCENARIO = Scenario(actions=(Arrive(Prompt(0, 16)), Step(2)))
EVENTS = [
    Event(
        Kind.ACTION,
        -1,
        0,
        data={
            "index": 0,
            "action": {"do": "arrive", "prompt": {"family": 0, "length": 16}},
            "resolved": "r0",
            "effect": True,
        },
    ),
    Event(Kind.STATUS, 0, 0, "r0", data={"old": None, "new": "WAITING"}),
    Event(
        Kind.ACTION,
        -1,
        0,
        data={
            "index": 1,
            "action": {"do": "step", "count": 2},
            "resolved": "engine 0",
            "effect": True,
        },
    ),
]
STEPS = ["arrive r0 prompt 0:16", "step engine 0 count=2"]


def fault(rule: str, side: Side = "worker half", *, got: str = "r0", **more: Any) -> dict[str, Any]:
    """A fault of a rule; ``more`` overrides its other fields."""
    fingerprint = Fingerprint(rule, side, "Mine", "a kind", "get_finished")
    violation = Violation(fingerprint, "nothing of the kind", got, why="the engine dies")
    return {
        "violation": violation.to_json(),
        "scenario": SCENARIO.to_json(),
        "events": [event.to_json() for event in EVENTS],
        "path": f".kvconform/{rule}-{fingerprint.id}.json",
        "runs": 3,
        "confirmed": True,
        **more,
    }


def rule(id: str, result: str = "pass", *faults: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The verdict on a rule; ``more`` overrides its other fields."""
    return {
        "id": id,
        "title": f"title of {id}",
        "text": f"text of {id}",
        "level": "must",
        "side": "vLLM" if id.startswith("VLL") else "worker half",
        "provoked": "something happened",
        "source": "v1/core/sched/scheduler.py",
        "help": "look there",
        "result": result,
        "reached": 7,
        "reason": "",
        "faults": list(faults),
        **more,
    }


def check(*rules: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A check with these rules; ``more`` overrides its other fields."""
    return {
        "target": "pkg.mod:Mine",
        "profile": "store",
        "vllm": "0.32.0",
        "seconds": 1.5,
        "options": {"level": "L3", "seed": 1, "examples": 20},
        "rules": list(rules),
        "deaths": [],
        **more,
    }


def everything() -> dict[str, Any]:
    """Each result once, two faults at one rule, and a finding that is vLLM's."""
    return check(
        rule("KVC-001"),
        rule("KVC-101", "fail", fault("KVC-101", "scheduler half"), fault("KVC-101")),
        rule("KVC-102", level="should"),
        rule("KVC-302", "fail", fault("KVC-302", got=MARKUP)),
        rule("KVC-303", "inconclusive", fault("KVC-303", confirmed=False),
             reason="seen once, and not again in a replay"),
        rule("KVC-304", "vacuous", reason="never reached: an abort while loading"),
        rule("KVC-601", "not_supported", reason="needs load-failure"),
        rule("KVC-701", "untested"),
        rule("KVC-801", "known_fail", fault("KVC-801"), known=[KNOWN], reason=KNOWN_REASON),
        rule("VLL-101"),
        rule("VLL-201", "fail", fault("VLL-201", "vLLM")),
        rule("VLL-202", "vacuous", reason="never reached: any output"),
        deaths=["KILLED  the target's process hung"],
    )  # fmt: skip


KNOWN = {
    "status": "known",
    "message": "KVC-801 is known until 2027-01-31.",
    "fingerprint": "0123456789",
    "issue": "https://example.org/issues/7?a=1&b=2",
}
KNOWN_REASON = f"known until 2027-01-31: *a* <reason> ({KNOWN['issue']})"

STATUSES = {
    "KVC-001": "passed",
    "KVC-101": "failed",
    "KVC-102": "passed",
    "KVC-302": "failed",
    "KVC-303": "broken",
    "KVC-304": "broken",
    "KVC-601": "skipped",
    "KVC-701": "skipped",
    "KVC-801": "skipped",
    "VLL-101": "passed",
    "VLL-201": "skipped",
    "VLL-202": "skipped",
    "PROCESS": "failed",
}
"""What the rules of ``everything`` come to."""
