"""A table of rules and vLLM releases: what a connector does on each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_MARK = {
    "pass": "ok",
    "fail": "FAIL",
    "known_fail": "known",
    "not_supported": "-",
    "vacuous": "never",
    "inconclusive": "?",
    "untested": "",
}
_OWN = {"fail": "vLLM", "vacuous": ""}
"""What is vLLM's to keep, and does not count against the target."""

_EXIT = {
    0: "ok",
    1: "FAIL",
    2: "open",
    3: "cannot",
    4: "ERROR",
    5: "KILLED",
}

LEGEND = (
    "ok kept · FAIL broken · vLLM broken by vLLM itself, does not count · never: was never put to "
    "the test · - not a rule there, or of a feature that is missing · (release) not claimed, does "
    "not count"
)


def table(target: str, columns: Sequence[Mapping[str, Any]]) -> str:
    """Rules down, releases across, and the verdicts below.

    Args:
        target: its name.
        columns: one for each release: ``vllm``, ``claimed``, ``exit``, ``message`` (when there is
            no report), ``rules`` (of the JSON report, may be empty).
    """
    heads = [c["vllm"] if c["claimed"] else f"({c['vllm']})" for c in columns]
    widths = [max(7, len(head)) for head in heads]

    def row(first: str, cells: Sequence[str]) -> str:
        padded = (f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=True))
        return f"  {first:<9}{'  '.join(padded)}".rstrip()

    rules: dict[str, str] = {}
    for column in columns:
        rules |= {rule["id"]: rule["title"] for rule in column["rules"]}
    lines = ["", f"{target}: rules and vLLM releases", "", row("", heads)]
    for rule in sorted(rules):
        cells = [_cell(rule, column["rules"]) for column in columns]
        lines.append(f"{row(rule, cells):<{13 + sum(widths) + 2 * len(widths)}}{rules[rule]}")
    lines += ["", row("", [_EXIT.get(c["exit"], str(c["exit"])) for c in columns]), ""]
    lines += [f"  {c['vllm']}: {c['message']}" for c in columns if c["message"]]
    lines.append(f"  {LEGEND}")
    return "\n".join(lines)


def _cell(rule: str, verdicts: Sequence[Mapping[str, Any]]) -> str:
    result = next((v["result"] for v in verdicts if v["id"] == rule), "untested")
    marks = {**_MARK, **_OWN} if rule.startswith("VLL") else _MARK
    return marks[result]
