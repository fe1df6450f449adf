"""Which fault met requests in which state, how often, and what was not met."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any


def table(
    counts: Mapping[str, int],
    pairs: Sequence[tuple[str, str]],
    faults: Sequence[str],
    holes: Sequence[Mapping[str, Any]],
) -> str:
    """A row for each fault and a column for each state, and the empty cells by reason.

    Args:
        counts: ``fault/state/phase`` that occurred, with how often.
        pairs: states with phases, in the order of the columns.
        faults: the rows.
        holes: cells that were not met: fault, state, phase, why (empty: nothing is in the way).
    """
    heads = [_words(*pair) for pair in pairs]
    closed = {(h["fault"], h["state"], h["phase"]) for h in holes if h["why"]}
    rows = [("", *map(str, range(1, len(pairs) + 1)))]
    for fault in faults:
        rows.append((fault, *(
            str(counts.get("/".join((fault, *pair))) or ("x" if (fault, *pair) in closed else "-"))
            for pair in pairs
        )))  # fmt: skip
    lines = ["", "  how often a fault met a request that was:"]
    lines += [f"    {number:>2} {head}" for number, head in enumerate(heads, 1)]
    lines += ["    " + f"{row[0]:<12}" + "".join(f"{cell:>6}" for cell in row[1:]) for row in rows]
    reasons = dict.fromkeys(h["why"] for h in holes if h["why"])
    for reason in reasons:
        lines += _listed(f"x  unreachable: {reason}", [h for h in holes if h["why"] == reason])
    lines += _listed("-  not met", [h for h in holes if not h["why"]])
    return "\n".join(lines)


def _words(state: str, phase: str) -> str:
    return state + ("" if phase == "-" else f", {phase}")


def _listed(head: str, holes: Sequence[Mapping[str, Any]]) -> list[str]:
    """The cells below a heading, by state; nothing where there are none."""
    by_state: dict[str, list[str]] = {}
    for hole in holes:
        by_state.setdefault(_words(hole["state"], hole["phase"]), []).append(hole["fault"])
    lines = [f"    {head}"] if holes else []
    for state, faults in by_state.items():
        text = f"{state}: {', '.join(faults)}"
        lines += textwrap.wrap(
            text, 100, initial_indent=" " * 9, subsequent_indent=" " * 11, break_on_hyphens=False
        )
    return lines
