"""What no run meets, and why: cells of fault, state and phase that stay empty for a reason."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from kvconform.conformance.cycle import PAIRS, Phase, State

Pair = tuple[State, Phase]


@dataclass(frozen=True, slots=True)
class Unreachable:
    """Cells that cannot be met.

    Attributes:
        why: the reason.
        pairs: states, with how far transfers are.
        fault: fault package; empty: any.
        target: class whose requests it is true of; empty: any.
    """

    why: str
    pairs: frozenset[Pair]
    fault: str = ""
    target: str = ""


UNREACHABLE: tuple[Unreachable, ...] = (
    Unreachable(
        "what is lost is one open transfer, and such a request has none",
        frozenset(pair for pair in PAIRS if pair[1] in ("-", "moved")),
        fault="lost",
    ),
    Unreachable(
        "this connector saves what has ended, and nothing while it runs",
        frozenset({("running", "under way")}),
        target="AscendConnector",
    ),
)
"""Of other connectors more may be out of reach: what they do not meet is listed as not met."""


@dataclass(frozen=True, slots=True)
class Hole:
    """A cell that no run has met.

    Attributes:
        fault: fault package.
        state: of a request.
        phase: how far its transfers were.
        why: why it cannot be met; empty: it can.
    """

    fault: str
    state: State
    phase: Phase
    why: str


def why(fault: str, pair: Pair, target: str = "") -> str:
    """Why a cell cannot be met by a target of this class (or by any); empty: it can."""
    for entry in UNREACHABLE:
        if pair in entry.pairs and entry.fault in ("", fault) and entry.target in ("", target):
            return entry.why
    return ""


def holes(coverage: Mapping[str, int], faults: Collection[str], target: str) -> list[Hole]:
    """Cells that were not met.

    Args:
        coverage: ``fault/state/phase`` that occurred, with how often.
        faults: packages that the runs could use.
        target: class of the target.
    """
    return [
        Hole(fault, *pair, why(fault, pair, target))
        for fault in sorted(faults)
        for pair in PAIRS
        if not coverage.get("/".join((fault, *pair)))
    ]
