"""What the terminal shows: the summary of a check, one block per fault, the end of a replay."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kvconform.reports.table import action_text, render, rows
from kvconform.scenario.actions import Action, action_to_json
from kvconform.scenario.known import Known
from kvconform.scenario.scenario import Scenario
from kvconform.scenario.trace import Event
from kvconform.scenario.violation import Violation

_MARK = {
    "pass": "ok",
    "fail": "FAIL",
    "known_fail": "known",
    "not_supported": "-",
    "vacuous": "VACUOUS",
    "inconclusive": "?",
    "untested": "untested",
}


PROGRAM = os.environ.get("KVCONFORM_COMMAND", "kvconform")
"""How the user started us, for commands to copy."""

MOST_ACTIONS = 20
"""Actions that are shown of a run that took its process down."""


def fault(
    violation: Violation,
    scenario: Scenario,
    events: Sequence[Event] | None,
    rule: Mapping[str, Any],
    path: str | None = None,
    runs: int = 0,
) -> str:
    """One fault: the rule, the table of the smallest run, and what to do next.

    Args:
        violation: what happened.
        scenario: the smallest one known.
        events: of its run.
        rule: title, text, source, help and incidents of the rule.
        path: the crash file.
        runs: runs of the exploration that showed it.
    """
    fingerprint = violation.fingerprint
    head = f"{fingerprint.rule}  {rule['title']}   [{fingerprint.side}]"
    lines = ["", "=" * 100, head, *_wrapped(rule["text"], "  ")]
    if events and scenario.actions:
        shape = shape_text(scenario)
        lines += ["", f"  {len(scenario.actions)} actions" + (f"; {shape}" if shape else ""), ""]
        lines += textwrap.indent(render(rows(events)), "  ").splitlines()
    lines.append("")
    lines += _field("expected", violation.expected)
    lines += _field("got", violation.got)
    if violation.why:
        lines += _field("why", violation.why)
    if violation.consequence:
        lines += _field("then", violation.consequence)
    seen = f"{fingerprint.kind}, at {fingerprint.where}"
    if runs:
        seen += f", in {runs} run" + ("s" if runs != 1 else "")
    lines += _field("seen in", seen)
    if rule.get("source"):
        lines += _field("source", rule["source"])
    if rule.get("help"):
        lines += _field("next move", rule["help"])
    if path:
        lines += ["", f"  reproduce:  {PROGRAM} replay {path}"]
    return "\n".join(lines)


def known(entry: Known, rule: Mapping[str, Any], path: str | None) -> str:
    """A known failure: why it is put up with, until when, and how to see it."""
    side = entry.fingerprint.side
    lines = ["", f"KNOWN  {entry.fingerprint.rule}  {rule['title']}   [{side}]", ""]
    lines += _field("reason", entry.reason)
    lines += _field("issue", entry.issue)
    lines += _field("until", entry.expires)
    lines += _field("seen in", f"{entry.fingerprint.kind}, at {entry.fingerprint.where}")
    if path:
        lines += ["", f"  reproduce:  {PROGRAM} replay {path}"]
    return "\n".join(lines)


def death(what: Any, path: str | None) -> str:
    """A process that the target took down (``what``: how, detail, hook, unit, stacks, log)."""
    words = {"crash": "died", "hang": "hung", "memory": "took too much memory"}[what.how]
    lines = ["", "=" * 100, f"KILLED  the target's process {words}: {what.detail}", ""]
    lines += _field("hook", what.hook or "none was being called")
    lines += _field("in", what.unit)
    if what.scenario is not None:
        lines += _field("after", f"{len(what.scenario['actions'])} actions")
        last = what.scenario["actions"][-1:]
        lines += _field("action", str(last[0]) if last else "setting up")
    # Stacks begin with the innermost call, a log ends with the last word.
    for name, part in (("stacks", what.stacks.splitlines()[:20]), ("log", _tail(what.log))):
        if part:
            lines += [f"  {name}:", *(f"    {line}" for line in part)]
    if what.scenario is not None:
        scenario = Scenario.from_json(what.scenario)
        lines += _field("shape", shape_text(scenario) or "default")
        lines += ["  actions:", *(f"    {_action(a)}" for a in scenario.actions[-MOST_ACTIONS:])]
    if path:
        lines += ["", f"  reproduce:  {PROGRAM} replay {path}"]
    return "\n".join(lines)


def _action(action: Action) -> str:
    return action_text(action_to_json(action), "", True)


def _tail(text: str, lines: int = 8) -> list[str]:
    return text.strip().splitlines()[-lines:]


def shape_text(scenario: Scenario) -> str:
    """What of the shape is not the default."""
    shape = scenario.to_json()["shape"]
    return ", ".join(f"{k}={v}" for k, v in shape.items())


def summary(
    title: str,
    result: str,
    rules: Sequence[Mapping[str, Any]],
    run: Mapping[str, Any],
    features: Mapping[str, str],
) -> str:
    """The end of a check: the rules in a few lines, the verdict, and how it was reached."""
    lines = ["", title]
    for entry in rules:
        mark = _MARK[entry["result"]]
        if entry["id"].startswith("VLL"):  # shown, and never held against the target
            mark = {"fail": "vLLM's", "vacuous": "not met"}.get(entry["result"], mark)
        elif entry["level"] == "should" and entry["result"] == "fail":
            mark = "should"  # fails under --strict only
        count = f"reached {entry['reached']}" if entry["reached"] else ""
        note = entry.get("reason") or count
        lines.append(f"  {entry['id']}  {mark:<9} {entry['title']:<52} {note}".rstrip())
    lines.append("")
    if features:
        lines += _field("features", ", ".join(sorted(features)), 10)
    lines.append(
        f"  {run['examples']} runs, {run['steps']} steps ({run['checkedSteps']} checked), "
        f"{run['seconds']:.0f} s, level {run['level']}, seed {run['seed']}"
    )
    if run.get("tolerant"):
        lines += _field("tolerant", ", ".join(run["tolerant"]), 10)
    if run.get("shapes"):
        lines += _field("shapes", shapes_text(run["shapes"]), 10)
    for message, count in run.get("refused", {}).items():
        lines += _field("refused", f"{count} runs: {message}", 10)
    if run.get("cutShort"):
        lines.append("  the time budget ended before all examples were run")
    lines += ["", f"  {result.upper()}"]
    open_rules = [
        e["id"] for e in rules
        if e["result"] in ("vacuous", "inconclusive") and not e["id"].startswith("VLL")
    ]  # fmt: skip
    if result == "inconclusive":
        lines += _wrapped(
            f"Not decided: {', '.join(open_rules)}. More --examples may reach a rule that was not; "
            "'kvconform explain RULE' says what it takes.",
            "  ",
        )
    return "\n".join(lines)


def drift(vllm: str, contract: Mapping[str, Any]) -> str:
    """A notice that this vLLM is not one that kvconform was measured on."""
    points = "a point" if contract["changes"] == 1 else f"{contract['changes']} points"
    return "\n".join(
        _wrapped(
            f"notice: vLLM {vllm} was not measured: its contract differs from that of "
            f"{contract['resembles']} in {points} ('kvconform doctor' lists "
            "them). Check by hand what it is accused of.",
            "  ",
        )
    )


def shapes_text(shapes: Mapping[str, int]) -> str:
    """How many runs had which shape, in a line: ``tp 1 ×120, 2 ×80; …``."""
    fields: dict[str, list[str]] = {}
    # By length first: numbers are in order then.
    for pair, count in sorted(shapes.items(), key=lambda item: (len(item[0]), item[0])):
        name, _, value = pair.partition("=")
        fields.setdefault(name, []).append(f"{value} ×{count}")
    shown = ("topology", "engines", "tp", "pp", "block_size", "drafts", "async_scheduling",
             "policy", "runner", "window")  # fmt: skip
    return "; ".join(f"{name} {', '.join(fields[name])}" for name in shown if name in fields)


def _field(name: str, text: str, width: int = 9) -> list[str]:
    return _wrapped(text, f"  {name:<{width}}  ", " " * (width + 4))


def _wrapped(text: str, first: str, rest: str | None = None) -> list[str]:
    rest = first if rest is None else rest
    return textwrap.wrap(
        text, 100, initial_indent=first, subsequent_indent=rest, break_long_words=False
    ) or [first.rstrip()]


def listing(entries: Iterable[tuple[str, str]]) -> str:
    """Names with a line each."""
    pairs = list(entries)
    width = max((len(name) for name, _ in pairs), default=0)
    return "\n".join(f"{name:<{width}}  {title}".rstrip() for name, title in pairs)
