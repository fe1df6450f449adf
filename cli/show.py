"""``kvconform list`` and ``kvconform explain``: they import neither vLLM nor torch."""

from __future__ import annotations

import dataclasses
import json
import textwrap
from typing import Any

from kvconform.conformance import cycle
from kvconform.conformance.invariants import BY_ID as INVARIANT
from kvconform.conformance.invariants import INVARIANTS
from kvconform.conformance.profiles import PROFILES
from kvconform.conformance.rules import RULES, rule_data
from kvconform.conformance.rules import find as find_rule
from kvconform.conformance.statements import STATEMENTS, is_statement_id, statement_data
from kvconform.conformance.statements import find as find_statement
from kvconform.connectors.targets.known import KNOWN
from kvconform.connectors.zoo.catalogue import MUTANTS
from kvconform.faults.packages import PACKAGES
from kvconform.reports import life_cycle
from kvconform.reports.catalogue import page
from kvconform.reports.terminal import listing as columns
from kvconform.scenario.errors import UsageError


def rules_page() -> str:
    """The catalogue of rules as Markdown: ``docs/rules.md``."""
    noticed: dict[str, list[str]] = {}
    for mutant in MUTANTS:
        by_breaks = {r for i in mutant.breaks for r in INVARIANT[i].rules}
        for rule in sorted(by_breaks | {*mutant.rules}):
            noticed.setdefault(rule, []).append(f"`{mutant.name}`")
    return page(
        [rule_data(rule) for rule in RULES],
        noticed,
        [dataclasses.asdict(invariant) for invariant in INVARIANTS],
        [statement_data(statement) for statement in STATEMENTS],
    )


def states_page() -> str:
    """The life cycle of a request as Markdown: ``docs/life-cycle.md``."""
    return life_cycle.page(
        [dataclasses.asdict(way) for way in cycle.WAYS],
        cycle.STATES,
        cycle.CAUSES,
        cycle.PHASES,
        cycle.diagram(),
    )


def listing(what: str, *, as_json: bool, markdown: bool = False) -> int:
    """List rules, states, faults, profiles, targets or mutants.

    Raises:
        UsageError: Markdown is for rules and states only.
    """
    if markdown:
        pages = {"rules": rules_page, "states": states_page}
        if what not in pages:
            raise UsageError(f"--markdown is for rules and states, not for {what}.")
        print(pages[what](), end="")
        return 0
    entries: list[tuple[str, str]]
    match what:
        case "rules":
            entries = [(r.id, r.title) for r in RULES]
        case "faults":
            entries = [(p.name, p.title + ("" if p.legal else " (hostile)")) for p in PACKAGES]
        case "states":
            entries = list(cycle.STATES.items())
        case "profiles":
            entries = [(p.name, p.title) for p in PROFILES]
        case "targets":
            entries = [(t.name, t.title) for t in KNOWN]
        case _:
            entries = [(t.name, t.title) for t in KNOWN if t.name.startswith("zoo:")]
    if as_json:
        data: list[dict[str, Any]] = [{"name": name, "title": title} for name, title in entries]
        if what == "faults":
            for entry, package in zip(data, PACKAGES, strict=True):
                entry["legal"] = package.legal
                entry["rules"] = [r.id for r in RULES if package.name in r.packages]
        print(json.dumps(data, indent=1))
    else:
        print(columns(entries))
    return 0


def explain(some_id: str) -> int:
    """Explain a rule, or a statement of the contract.

    Raises:
        UsageError: there is none of that id.
    """
    if is_statement_id(some_id.upper()):
        statement = find_statement(some_id)
        judged = [f"{rule} {find_rule(rule).title}" for rule in statement.rules]
        facts = {
            "owed by": statement.owed_by,
            "judged by": "; ".join(judged),
            "but" if judged else "why not": statement.why_not,
        }
        _explain(statement.id, statement.text, facts)
        return 0
    rule = find_rule(some_id)
    facts = {
        "owes it": rule.side,
        "level": rule.level,
        "provoked": rule.provoked,
        "by": ", ".join(sorted(rule.packages)),
        "needs": ", ".join(sorted(rule.features)),
        "source": rule.source,
        "since": f"vLLM {rule.since}" + (f" to {rule.until}" if rule.until else ""),
        "incidents": ", ".join(rule.incidents),
        "judges": ", ".join(s.id for s in STATEMENTS if rule.id in s.rules),
        "tolerant": rule_data(rule)["tolerant"],
        "help": rule.help,
    }
    _explain(f"{rule.id}  {rule.title}", rule.text, facts)
    return 0


def _explain(head: str, text: str, facts: dict[str, str]) -> None:
    """Print what has to hold, and the facts that are known about it."""
    print(f"{head}\n")
    print(textwrap.fill(text, 96, initial_indent="  ", subsequent_indent="  "))
    print()
    for name, fact in facts.items():
        if fact:
            print(
                textwrap.fill(fact, 96, initial_indent=f"  {name:<10}", subsequent_indent=" " * 12)
            )
