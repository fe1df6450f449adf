"""The table of what met whom: counts, what is out of reach and why, what was not met."""

from __future__ import annotations

import dataclasses

from kvconform.conformance.cycle import PAIRS
from kvconform.conformance.unreachable import holes, why
from kvconform.reports.coverage import table

COUNTS = {"abort/waiting/-": 12, "lost/loading/under way": 3}


def shown(*faults: str, target: str = "AscendConnector") -> list[str]:
    found = [dataclasses.asdict(hole) for hole in holes(COUNTS, faults, target)]
    return table(COUNTS, PAIRS, faults, found).splitlines()


def test_a_row_for_each_fault_and_a_mark_for_each_empty_cell() -> None:
    lines = shown("abort", "lost")
    rows = {line.split()[0]: line.split()[1:] for line in lines if line.startswith("    abort ")}
    assert rows["abort"][:2] == ["12", "-"]
    assert rows["abort"][PAIRS.index(("running", "under way"))] == "x"
    (lost,) = (line.split()[1:] for line in lines if line.startswith("    lost "))
    assert lost[PAIRS.index(("waiting", "-"))] == "x"
    assert lost[PAIRS.index(("loading", "under way"))] == "3"
    assert lost[PAIRS.index(("kept", "under way"))] == "-"


def test_reasons_are_apart_from_what_was_not_met() -> None:
    lines = shown("abort", "lost")
    heads = [line.strip() for line in lines if line.startswith("    x ") or line[4:6] == "- "]
    assert heads == [
        f"x  unreachable: {why('abort', ('running', 'under way'), 'AscendConnector')}",
        f"x  unreachable: {why('lost', ('waiting', '-'))}",
        "-  not met",
    ]
    not_met = "\n".join(lines[lines.index("    -  not met") :])
    assert "kept, under way: abort, lost" in not_met
    assert "running, under way" not in not_met
    assert "running, under way: abort, lost" in "\n".join(shown("abort", "lost", target="Other"))


def test_what_was_met_in_full_lists_nothing() -> None:
    counts = {f"abort/{state}/{phase}": 1 for state, phase in PAIRS}
    assert holes(counts, {"abort"}, "Other") == []
    assert "not met" not in table(counts, PAIRS, ["abort"], [])
