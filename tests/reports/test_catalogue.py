"""The page of rules is what the catalogue says."""

from __future__ import annotations

from pathlib import Path

from kvconform.cli.show import rules_page
from kvconform.conformance.invariants import BY_ID as INVARIANT
from kvconform.conformance.invariants import INVARIANTS, expected
from kvconform.conformance.rules import BY_ID, RULES
from kvconform.connectors.zoo.catalogue import MUTANTS
from kvconform.faults.packages import NAMES

PAGE = Path(__file__).resolve().parents[2] / "docs" / "rules.md"


def test_the_page_is_up_to_date() -> None:
    # kvconform list rules --markdown > docs/rules.md
    assert PAGE.read_text(encoding="utf-8") == rules_page()


def test_every_rule_is_whole() -> None:
    assert len(RULES) >= 45
    for rule in RULES:
        assert all((rule.text, rule.provoked, rule.side)), rule.id
        assert all((rule.source, rule.help)), rule.id


def test_every_rule_is_broken_by_somebody() -> None:
    broken = {r for m in MUTANTS for r in {*m.rules}.union(*(INVARIANT[i].rules for i in m.breaks))}
    # Two releases of vLLM are wrong schedulers for it themselves, see tests/rules/test_defects.py.
    assert {rule.id for rule in RULES} - broken == {"VLL-101"}


def test_every_package_provokes_a_rule() -> None:
    assert {package for rule in RULES for package in rule.packages} == set(NAMES)


def test_invariants_name_rules() -> None:
    assert [i.id for i in INVARIANTS] == [f"I{n:02}" for n in range(1, 40)]
    for invariant in INVARIANTS:
        assert {*invariant.rules, *invariant.by} <= BY_ID.keys()


def test_every_mutant_is_to_be_noticed_by_somebody() -> None:
    for mutant in MUTANTS:
        assert expected(mutant.breaks) | {*mutant.rules}, mutant.name
        # What vLLM owes is named by its rules, and so is a mistake that no public defect is like.
        assert bool(mutant.rules) != bool(mutant.breaks), mutant.name
        assert bool(mutant.rules) >= (mutant.side == "vLLM"), mutant.name
        assert mutant.says.endswith("."), mutant.name
        assert bool(mutant.bug) == bool(mutant.source), mutant.name
