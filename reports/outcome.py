"""What a rule's verdict comes to in a test report.

Allure, JUnit and pytest know four statuses, a verdict has seven results. The table is here, so that
all of them say the same.

A check comes as JSON data::

    target, profile, vllm, seconds    name, name, version, and how long it took
    options                           level, seed, and all else that decides what is explored
    rules[]                           id, title, text, level, side, provoked, source, help (from the
                                      catalogue); result, reached, reason (the verdict); faults[]
    rules[].known[]                   how the entries of known failures stand: status, message,
                                      fingerprint, issue
    rules[].faults[]                  violation, scenario, events (JSON of the smallest run), path
                                      (of the crash file, or None), runs, confirmed, excused
                                      (it is a known failure)
    deaths[]                          in words, each process that the target took down
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from kvconform.reports import terminal
from kvconform.reports.table import action_text, render, rows
from kvconform.scenario.actions import action_to_json
from kvconform.scenario.scenario import Scenario
from kvconform.scenario.trace import Event, Kind
from kvconform.scenario.violation import Violation

Status = Literal["passed", "failed", "broken", "skipped"]
Severity = Literal["critical", "normal", "minor"]

STATUS: Mapping[str, Status] = {
    "pass": "passed",
    "fail": "failed",
    "known_fail": "skipped",
    "inconclusive": "broken",
    "vacuous": "broken",
    "not_supported": "skipped",
    "untested": "skipped",
}
"""``broken``: neither kept nor broken, the rule was not put to the test, or not twice the same."""

PROCESS = "PROCESS"
"""Id of the case that tells whether the target took a process down; it stands for no rule."""

_ILLEGAL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def legible(text: str) -> str:
    """``text`` without what XML 1.0 forbids: control characters, lone surrogates."""
    return _ILLEGAL.sub("", text)


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault, as the smallest run shows it.

    Attributes:
        gist: rule, side, expected, got, why, and how to reproduce it; a line for each.
        text: all that the terminal shows of it.
        steps: the actions of the shrunk scenario, in words.
        table: the run as a table.
        scenario: JSON data.
        events: JSON data.
    """

    gist: str
    text: str
    steps: tuple[str, ...]
    table: str
    scenario: dict[str, Any]
    events: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Case:
    """One rule of a check, as a test report shows it.

    Attributes:
        id: of the rule, or ``PROCESS``.
        name: id and title.
        status: what it comes to.
        severity: ``critical`` for what a connector must do.
        side: who owes it, as a rule.
        gist: why it did not pass; empty when it did.
        text: the same, with all that is known.
        about: paragraphs that explain the rule and its verdict.
        faults: what was found.
        issues: links to where its known failures are followed up.
        notes: how they stand, a sentence for each that has changed.
        known: it did not pass, and that is a known failure.
    """

    id: str
    name: str
    status: Status
    severity: Severity
    side: str
    gist: str = ""
    text: str = ""
    about: tuple[str, ...] = ()
    faults: tuple[Fault, ...] = ()
    issues: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    known: bool = False

    @property
    def is_vllms(self) -> bool:
        """Whether vLLM owes it: then it is reported, and never held against the target."""
        return self.id.startswith("VLL")


def cases(check: Mapping[str, Any]) -> list[Case]:
    """The cases of a check: one for each rule, and one for the process if it died."""
    out = [rule_case(rule) for rule in check["rules"]]
    return [*out, process_case(check["deaths"])] if check["deaths"] else out


def process_case(deaths: Sequence[str]) -> Case:
    """Whether the target took a process down."""
    text = legible("\n\n".join(death.lstrip("\n=") for death in deaths))
    name = f"{PROCESS} the target takes no process down"
    about = ("A connector that exits, crashes, hangs or eats the memory takes the engine along.",)
    if not deaths:
        return Case(PROCESS, name, "passed", "critical", "composition", about=about)
    gist = f"{PROCESS}: taken down {len(deaths)} times\n" + "\n".join(
        legible(death.lstrip("\n=").partition("\n")[0]) for death in deaths
    )
    return Case(PROCESS, name, "failed", "critical", "composition", gist, text, about)


def rule_case(rule: Mapping[str, Any]) -> Case:
    """What the verdict on one rule comes to."""
    vllms = rule["id"].startswith("VLL")
    faults = tuple(_fault(rule, fault) for fault in rule["faults"])
    status = STATUS[rule["result"]]
    if vllms and status != "passed":
        status = "skipped"
    notes = []
    if status != "passed" and (rule["reason"] or not faults):
        notes.append(f"{rule['id']} {rule['result']}: {rule['reason'] or rule['title']}")
    if vllms and faults:
        notes.append("vLLM's own, not held against the target:")
    severity: Severity = "critical" if rule["level"] == "must" else "normal"
    return Case(
        rule["id"],
        f"{rule['id']} {rule['title']}",
        status,
        "minor" if vllms else severity,
        rule["side"],
        legible("\n".join([*notes, *(f.gist for f in faults)])),
        legible("\n\n".join([*notes, *(f.text for f in faults)])),
        tuple(_about(rule, vllms)),
        faults,
        tuple(dict.fromkeys(known["issue"] for known in rule.get("known", ()))),
        tuple(legible(k["message"]) for k in rule.get("known", ()) if k["status"] != "known"),
        rule["result"] == "known_fail",
    )


def _about(rule: Mapping[str, Any], vllms: bool) -> list[str]:
    out = [rule["text"]]
    if vllms:
        out.append("vLLM owes this: a finding is reported, and never held against the target.")
    for fault in rule["faults"]:
        violation = Violation.from_json(fault["violation"])
        kind, where = violation.fingerprint.kind, violation.fingerprint.where
        out.append(legible(f"Found: {kind}, at {where}. {violation.got}."))
    if rule["result"] == "pass" and rule["reason"]:
        out.append(f"Kept {rule['reason']}.")
    out += (legible(known["message"]) for known in rule.get("known", ()))
    out.append(f"Provoked by: {rule['provoked']}. Reached: {rule['reached']}.")
    if rule["source"]:
        out.append(f"Source in vLLM: {rule['source']}.")
    return out


def _fault(rule: Mapping[str, Any], fault: Mapping[str, Any]) -> Fault:
    violation = Violation.from_json(fault["violation"])
    scenario = Scenario.from_json(fault["scenario"])
    events = [Event.from_json(e) for e in fault["events"]]
    gist = [
        f"{rule['id']} {rule['title']} [{violation.fingerprint.side}]",
        f"expected: {violation.expected}",
        f"got: {violation.got}",
    ]
    if violation.why:
        gist.append(f"why: {violation.why}")
    if violation.consequence:
        gist.append(f"then: {violation.consequence}")
    if fault["path"]:
        gist.append(f"reproduce: {terminal.PROGRAM} replay {fault['path']}")
    text = terminal.fault(violation, scenario, events, rule, fault["path"], fault["runs"])
    text = text.lstrip("\n=")  # often the first line of a message alone is shown
    if not fault["confirmed"]:
        text += "\n  NOT CONFIRMED: played again, the scenario ended differently."
    return Fault(
        legible("\n".join(gist)),
        legible(text),
        _steps(scenario, events),
        legible(render(rows(events))) if events else "",
        scenario.to_json(),
        [dict(e) for e in fault["events"]],
    )


def _steps(scenario: Scenario, events: Sequence[Event]) -> tuple[str, ...]:
    """The actions in words; what they referred to is known for those that were done."""
    done = [e.data for e in events if e.kind is Kind.ACTION]
    out = []
    for index, action in enumerate(scenario.actions):
        if index < len(done):
            data = done[index]
            out.append(action_text(data["action"], data["resolved"], data["effect"]))
        else:
            out.append(action_text(action_to_json(action), "", True))
    return tuple(legible(words) for words in out)
