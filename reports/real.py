"""Scenes on real engines as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import wrap
from typing import Any

from kvconform.reports.table import render

_COLUMNS = ("scene", "what was done", "requests", "loaded", "equal", "left", "seconds", "verdict")
_WIDTHS = (24, 40, 16, 6, 5, 4, 7, 12)
_MARK = {"pass": "pass", "fail": "FAIL", "inconclusive": "inconclusive"}

LEGEND = (
    "loaded: prompt tokens that came through the connector, by vLLM's own count · equal: requests "
    "that ended with the answer that they should have · lost: with an engine that was killed · "
    "left: blocks that no request holds and the scheduler has not got back"
)


def table(title: str, outcomes: Sequence[Mapping[str, Any]], vllm: str) -> str:
    """A row for each scene, what was found below, and the verdict.

    Args:
        title: the target.
        outcomes: see ``conformance.real.outcome.as_data``.
        vllm: its version.
    """
    rows = [
        (
            one["scene"],
            one["says"],
            _requests(one),
            str(one["loaded"]),
            str(one["equal"]),
            str(one["left"]),
            f"{one['seconds']:.1f}",
            _MARK[one["verdict"]],
        )
        for one in outcomes
    ]
    lines = ["", f"{title} on real engines, vLLM {vllm}", "", render(rows, _COLUMNS, _WIDTHS), ""]
    for one in outcomes:
        for finding in one["findings"]:
            rule = f"  ({finding['rule']})" if finding["rule"] else ""
            lines.append(f"  {one['scene']}: {finding['what']}{rule}")
            if finding["requests"]:
                names = finding["requests"]
                more = f" and {len(names) - 5} more" if len(names) > 5 else ""
                lines.append(f"      {', '.join(names[:5])}{more}")
        if one["lacks"] and not one["findings"]:
            lines.append(f"  {one['scene']}: inconclusive, for {one['lacks']}")
    return "\n".join([*lines, *wrap(LEGEND, 100, initial_indent="  ", subsequent_indent="  ")])


def _requests(one: Mapping[str, Any]) -> str:
    """``50, 10 aborted``."""
    also = [f"{one[key]} {key}" for key in ("aborted", "failed", "lost") if one[key]]
    return ", ".join([str(one["requests"]), *also])
