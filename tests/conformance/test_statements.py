"""Every statement of the contract is judged by rules, or says why it is not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kvconform.conformance.rules import BY_ID as RULE
from kvconform.conformance.rules import RULES
from kvconform.conformance.statements import BY_ID, STATEMENTS, Statement
from kvconform.reports.catalogue import page

ROOT = Path(__file__).resolve().parents[2]
FAMILIES = {"SCH": 29, "WRK": 17, "DAT": 11, "LIV": 6}
FOLDERS = ("benchmarks", "cli", "conformance", "connectors", "engine", "faults", "kvconform",
           "reports", "scenario", "tests")  # fmt: skip
MENTIONED = re.compile(rf"\b(?:{'|'.join(FAMILIES)})-\d+")
NO_STATEMENT = {"SCH-00", "SCH-99"}
"""Ids that tests make up."""


def test_ids_follow_each_other() -> None:
    assert [s.id for s in STATEMENTS] == [
        f"{family}-{n:02}" for family, last in FAMILIES.items() for n in range(1, last + 1)
    ]


@pytest.mark.parametrize("statement", STATEMENTS, ids=lambda s: s.id)
def test_rules_judge_it_or_a_reason_is_given(statement: Statement) -> None:
    assert set(statement.rules) <= RULE.keys()
    assert len(set(statement.rules)) == len(statement.rules)
    assert statement.rules or statement.why_not
    assert statement.text.endswith(".")
    assert not statement.why_not or statement.why_not.endswith(".")


@pytest.mark.parametrize("statement", STATEMENTS, ids=lambda s: s.id)
def test_who_owes_it_is_whom_its_rules_may_blame(statement: Statement) -> None:
    sides = {"vLLM" if rule.startswith("VLL") else "connector" for rule in statement.rules}
    if statement.owed_by == "vLLM":
        assert sides <= {"vLLM"}
    elif statement.owed_by == "connector" and statement.rules and "connector" not in sides:
        assert statement.why_not  # judged of vLLM only: a reason is owed


def test_what_the_source_cites_is_in_the_table() -> None:
    cited = {
        (found, path.relative_to(ROOT).as_posix())
        for name in FOLDERS
        for path in sorted((ROOT / name).rglob("*.py"))
        for found in MENTIONED.findall(path.read_text(encoding="utf-8"))
    }
    assert len(cited) > 30
    assert not [(s, path) for s, path in cited if s not in BY_ID.keys() | NO_STATEMENT]


def test_a_cell_stays_a_cell() -> None:
    odd = {"id": "SCH-00", "text": "a | b <i>", "owed_by": "vLLM", "rules": [], "why_not": "None."}
    last = page([], {}, [], [odd]).splitlines()[-1]
    assert last == "| SCH-00 | vLLM | a \\| b &lt;i> | None. |"


def test_rules_without_a_statement_are_known() -> None:
    # A new rule judges a statement, or has its place here.
    judged = {rule for statement in STATEMENTS for rule in statement.rules}
    beyond = {rule.id for rule in RULES} - judged
    assert beyond == {
        "KVC-002", "KVC-003", "KVC-106", "KVC-107", "KVC-307", "KVC-403", "KVC-408",
        "KVC-409", "KVC-410", "KVC-411", "KVC-502",
        "KVC-505", "KVC-509", "KVC-605", "KVC-802", "KVC-803", "KVC-804", "KVC-806", "KVC-807",
        "KVC-808", "VLL-001", "VLL-104", "VLL-202",
    }  # fmt: skip
