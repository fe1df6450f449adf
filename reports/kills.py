"""The kill matrix: which mutant was noticed by which rule, after how much."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

_COLUMNS = (("mutant", 28), ("", 10), ("rule", 8), ("side", 15), ("runs", 6), ("CPU s", 6),
            ("actions", 8))  # fmt: skip


def table(hunts: Sequence[Mapping[str, Any]], says: Mapping[str, str]) -> str:
    """One line for each mutant, and the sums.

    Args:
        hunts: how each hunt ended (see ``conformance/selftest.py``), as data.
        says: by name, the mistake in a sentence.
    """
    away = [h for h in hunts if h["right_here"]]
    mutants = [h for h in hunts if not h["twin"] and not h["right_here"]]
    twins = [h for h in hunts if h["twin"]]
    killed = [h for h in mutants if h["killed"]]
    lines = ["", "  " + "".join(f"{title:<{width}}" for title, width in _COLUMNS).rstrip()]
    for hunt in mutants:
        mark = "killed" if hunt["killed"] else "ALIVE"
        if hunt["killed"] and not hunt["expected"]:
            mark = "by other"
        side = hunt["side"] + ("" if hunt["right_side"] or not hunt["killed"] else " ✗")
        cells = (hunt["name"], mark, hunt["rule"], side, hunt["examples"], hunt["seconds"],
                 hunt["actions"])  # fmt: skip
        pairs = zip(cells, _COLUMNS, strict=True)
        lines.append("  " + "".join(f"{cell!s:<{width}}" for cell, (_, width) in pairs).rstrip())
    for hunt in mutants:
        if not hunt["killed"]:
            lines.append(f"  ALIVE  {hunt['name']}: {says.get(hunt['name'], '')}")
    for hunt in away:
        lines.append(f"  not wrong on this vLLM: {hunt['name']}")
    for hunt in twins:
        if hunt["killed"]:
            lines.append(f"  ALARM  the right connector ({hunt['name']}): {hunt['rule']}")
    lines.append("")
    if mutants:
        right = sum(h["right_side"] for h in killed)
        expected = sum(h["expected"] for h in killed)
        lines.append(
            f"  {len(killed)} of {len(mutants)} killed, {expected} by a rule that has to notice, "
            f"{right} on the right side"
        )
    if killed:
        lines.append(
            f"  median {statistics.median(h['seconds'] for h in killed):.1f} s of CPU time, "
            f"{statistics.median(h['actions'] for h in killed):g} actions"
        )
    alarms = sum(h["killed"] for h in twins)
    lines.append(f"  the right connector: {len(twins)} hunts, {alarms} alarms")
    return "\n".join(lines)
