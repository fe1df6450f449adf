"""The page of situations names only what there is, and something for each."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Callable, Collection
from pathlib import Path

import pytest

from kvconform.conformance.lifecycle import SCENARIOS
from kvconform.conformance.rules import BY_ID, RULES
from kvconform.connectors.targets.known import KNOWN
from kvconform.connectors.zoo.catalogue import BY_NAME
from kvconform.faults.packages import NAMES, PACKAGES
from kvconform.scenario.actions import Action
from kvconform.scenario.shape import Shape

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "coverage.md"
SITUATIONS = 33
NAME = re.compile(r"`(\w+): ([^`]+)`")

ACTIONS = {c.do for c in Action.__subclasses__()}
KNOWN_NAMES: dict[str, Collection[str]] = {
    "scenario": SCENARIOS,
    "package": NAMES,
    "action": ACTIONS,
    "rule": BY_ID,
    "mutant": BY_NAME,
    "field": {f.name for f in dataclasses.fields(Shape)},
    "target": {t.name for t in KNOWN},
}


def rows() -> list[list[str]]:
    """The cells of each row of the table."""
    lines = [line for line in PAGE.read_text("utf-8").splitlines() if re.match(r"\| \d", line)]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


ROWS = rows()
IDS = [row[0] for row in ROWS]


def names(kind: str, text: str) -> list[str]:
    return [name for said, name in NAME.findall(text) if said == kind]


def is_test(name: str) -> bool:
    """Whether a file has this test."""
    path, _, function = name.partition("::")
    if not (ROOT / path).is_file():
        return False
    tree = ast.parse((ROOT / path).read_text("utf-8"))
    return any(isinstance(node, ast.FunctionDef) and node.name == function for node in tree.body)


def test_every_situation_is_there_once() -> None:
    assert [str(number) for number in range(1, SITUATIONS + 1)] == IDS
    assert all(len(row) == 6 for row in ROWS)


@pytest.mark.parametrize("row", ROWS, ids=IDS)
def test_every_name_is_of_something(row: list[str]) -> None:
    known: dict[str, Callable[[str], bool]] = {
        kind: found.__contains__ for kind, found in KNOWN_NAMES.items()
    }
    known["test"] = is_test
    for cell in row:
        for quoted in re.findall(r"`([^`]*)`", cell):
            kind, _, name = quoted.partition(": ")
            assert kind in known, quoted
            assert known[kind](name), quoted


@pytest.mark.parametrize("row", ROWS, ids=IDS)
def test_every_situation_is_provoked_and_judged(row: list[str]) -> None:
    _, _, fixed, drawn, judged, shown = row
    packages = set(names("package", drawn))
    rules = [BY_ID[rule] for rule in names("rule", judged)]
    assert rules
    assert names("test", shown)
    static = all(rule.is_static for rule in rules)
    assert static or packages or names("field", drawn)
    assert bool(fixed) >= bool(names("scenario", fixed))
    # What is drawn reaches a rule that judges it; vLLM's rules watch in every run.
    for package in packages:
        reach = {r.id for r in RULES if package in r.packages or r.id.startswith("VLL")}
        assert reach & {rule.id for rule in rules}, package


def test_every_action_package_and_scenario_is_of_use() -> None:
    text = PAGE.read_text("utf-8")
    assert set(names("package", text)) == set(NAMES)
    assert set(names("action", text)) >= {action for p in PACKAGES for action in p.actions}
