"""The life cycle of a request as a page of Markdown, with its diagram."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_HEAD = """# The life of a request

Made by `kvconform list states --markdown` from the table in `conformance/cycle.py`. States are what
the contract tells apart, which is more than vLLM's statuses. A check reads the same table
(VLL-104), reports count which fault met a request in which of these states (`--coverage`), and
exploration is steered towards what was met most seldom (`conformance/steer.py`).
"""


def page(
    ways: Sequence[Mapping[str, str]],
    states: Mapping[Any, str],
    events: Mapping[Any, str],
    phases: Mapping[Any, str],
    diagram: str,
) -> str:
    """The page.

    Args:
        ways: ``state``, ``event``, ``to``, ``owed_by`` of each way from state to state.
        states: what each state means.
        events: what each event means.
        phases: what each phase of a transfer means.
        diagram: the ways in Mermaid's language.
    """
    parts = [_HEAD, f"```mermaid\n{diagram}\n```", ""]
    tables: tuple[tuple[str, Mapping[Any, str]], ...] = (
        ("State", states), ("Event", events), ("Transfers", phases),
    )  # fmt: skip
    for title, meanings in tables:
        parts += [f"| {title} | |\n|---|---|"]
        parts += [f"| {name} | {text} |" for name, text in meanings.items()]
        parts += [""]
    parts += ["| from | when | to | made by |\n|---|---|---|---|"]
    parts += [f"| {w['state']} | {w['event']} | {w['to']} | {w['owed_by']} |" for w in ways]
    return "\n".join(parts) + "\n"
