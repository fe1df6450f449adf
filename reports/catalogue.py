"""The catalogue of rules as a page of Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_HEAD = """# Rules

Made by `kvconform list rules --markdown`; `kvconform explain RULE` shows one of them. A rule passes
only when it was provoked. `should` rules fail a check only under `--strict`; `VLL` rules are vLLM's
to keep and are never held against a target. Sources are those of vLLM 0.32.0 where no other release
is named. The statements that rules judge are at the end: [what is owed](#what-is-owed).
"""


def page(
    rules: Sequence[Mapping[str, Any]],
    mutants: Mapping[str, Sequence[str]],
    invariants: Sequence[Mapping[str, Any]],
    statements: Sequence[Mapping[str, Any]],
) -> str:
    """The page.

    Args:
        rules: the catalogue, as ``rule_data`` has it.
        mutants: per rule, the members of the zoo that it may have to notice.
        invariants: what public defects break: ``id``, ``text``, ``rules``, ``by``.
        statements: the contract: ``id``, ``text``, ``owed_by``, ``rules``, ``why_not``.
    """
    parts = [_HEAD]
    for rule in rules:
        lines = [f"## {rule['id']} {rule['title']}", "", rule["text"], ""]
        span = f"since vLLM {rule['since']}" + (f", until {rule['until']}" if rule["until"] else "")
        facts = {
            "level": f"{rule['level']}; {span}",
            "owed by": rule["side"],
            "provoked by": rule["provoked"]
            + (f" (packages: {', '.join(rule['packages'])})" if rule["packages"] else ""),
            "needs": ", ".join(rule["features"]),
            "source": rule["source"],
            "incidents": ", ".join(rule["incidents"]),
            "tolerant reading": rule["tolerant"],
            "look first": rule["help"],
            "zoo": ", ".join(mutants.get(rule["id"], ())),
        }
        lines += [f"* {name}: {text}" for name, text in facts.items() if text]
        parts.append("\n".join(lines) + "\n")
    parts.append("## What public defects break\n")
    parts.append("| | | has to notice | may notice |\n|---|---|---|---|")
    for entry in invariants:
        rules_of, by = ", ".join(entry["rules"]) or "nobody yet", ", ".join(entry["by"])
        parts.append(f"| {entry['id']} | {entry['text']} | {rules_of} | {by} |")
    parts.append("\n## What is owed\n")
    parts.append("The statements of the contract; comments in the source cite them by their ids.\n")
    parts.append("| | owed by | | judged by |\n|---|---|---|---|")
    for entry in statements:
        judged = ". ".join(filter(None, (", ".join(entry["rules"]), entry["why_not"])))
        cells = (entry["id"], entry["owed_by"], entry["text"], judged)
        parts.append(f"| {' | '.join(map(_cell, cells))} |")
    return "\n".join(parts) + "\n"


def _cell(text: str) -> str:
    """Text that stays in its cell, and is no HTML."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|")
