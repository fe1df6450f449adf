"""The check as a function: deterministic, complete, honest about what it did not do."""

from __future__ import annotations

import pytest

from kvconform.conformance.check import Options, check_connector
from kvconform.conformance.machine import explorer_settings, suite_settings
from kvconform.conformance.objection import error_for
from kvconform.conformance.verdict import EXIT_FAILED, EXIT_INCONCLUSIVE, exit_code
from kvconform.connectors.targets.resolve import resolve
from kvconform.scenario.violation import Fingerprint, Violation

FEW = {"examples": 30, "shrink_runs": 150}


def test_the_full_hit_bug_is_found_and_shrunk() -> None:
    checked = check_connector(resolve("zoo:full-hit-report"), Options(seed=1, **FEW))  # type: ignore[arg-type]
    verdict = checked.verdict.of("KVC-302")
    assert verdict.result == "fail"
    finding = verdict.findings[0]
    assert finding.confirmed
    assert len(finding.scenario.actions) <= 8
    assert finding.violation.fingerprint.side == "worker half"
    assert "AssertionError" in finding.violation.consequence
    assert exit_code(checked.verdict) == EXIT_FAILED


def test_equal_seeds_find_equally() -> None:
    options = Options(seed=3, **FEW)  # type: ignore[arg-type]
    one = check_connector(resolve("zoo:full-hit-report"), options)
    two = check_connector(resolve("zoo:full-hit-report"), options)
    assert [f.violation for f in one.findings] == [f.violation for f in two.findings]
    assert [f.scenario for f in one.findings] == [f.scenario for f in two.findings]
    assert one.coverage == two.coverage
    assert one.progress.steps == two.progress.steps


def test_too_little_is_inconclusive_not_a_pass() -> None:
    checked = check_connector(resolve("ascend"), Options(faults=frozenset(), examples=3))
    assert checked.verdict.result == "inconclusive"
    assert "KVC-501" in checked.verdict.vacuous
    assert exit_code(checked.verdict) == EXIT_INCONCLUSIVE


def test_level_0_runs_nothing() -> None:
    checked = check_connector(resolve("ascend"), Options(level="L0"))
    assert checked.progress.steps == 0
    assert checked.verdict.of("KVC-001").result == "pass"
    assert checked.verdict.of("KVC-501").result == "untested"
    assert checked.verdict.result == "partial"


def test_one_exception_class_per_fingerprint() -> None:
    def violation(kind: str, got: str) -> Violation:
        return Violation(Fingerprint("KVC-302", "worker half", "X", kind, "w"), "e", got)

    assert type(error_for(violation("a", "1"))) is type(error_for(violation("a", "2")))
    assert type(error_for(violation("a", "1"))) is not type(error_for(violation("b", "1")))


@pytest.mark.parametrize("ci", ["", "1"])
def test_settings_do_not_follow_the_environment(
    ci: str, monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    monkeypatch.setenv("CI", ci)
    explorer = explorer_settings(10)
    assert explorer.derandomize is False
    assert explorer.database is None
    suite = suite_settings(10, str(tmp_path))
    assert suite.derandomize is False
    assert suite.database is not None
    assert suite.print_blob is True
