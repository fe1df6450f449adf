"""Seven results of a rule, four statuses of a test, and a sentence for each that did not pass."""

from __future__ import annotations

from typing import get_args

from kvconform.conformance.verdict import Result
from kvconform.reports.outcome import STATUS, cases, legible, process_case
from tests.reports import made


def test_every_result_has_a_status() -> None:
    assert set(STATUS) == set(get_args(Result))


def test_statuses_follow_from_results() -> None:
    assert {c.id: c.status for c in cases(made.everything())} == made.STATUSES


def test_what_did_not_pass_says_why_and_what_passed_is_silent() -> None:
    for case in cases(made.everything()):
        assert bool(case.gist) == bool(case.text) == (case.status != "passed"), case.id
        assert case.status == "passed" or case.id in case.gist


def test_a_fault_tells_what_was_expected_and_how_to_see_it_again() -> None:
    (case,) = cases(made.check(made.rule("KVC-302", "fail", made.fault("KVC-302"))))
    assert case.gist.splitlines() == [
        "KVC-302 title of KVC-302 [worker half]",
        "expected: nothing of the kind",
        "got: r0",
        "why: the engine dies",
        f"reproduce: kvconform replay {made.fault('KVC-302')['path']}",
    ]
    (fault,) = case.faults
    assert list(fault.steps) == made.STEPS
    assert "the connector said" in fault.table
    assert "next move  look there" in " ".join(fault.text.split("\n"))


def test_a_fault_without_a_run_has_no_steps() -> None:
    static = made.fault("KVC-002", scenario={"shape": {}, "actions": []}, events=[], path=None)
    (case,) = cases(made.check(made.rule("KVC-002", "fail", static)))
    (fault,) = case.faults
    assert fault.steps == ()
    assert fault.table == ""
    assert "reproduce" not in case.text


def test_actions_that_the_run_did_not_come_to_are_steps_too() -> None:
    cut = made.fault("KVC-302", events=[made.EVENTS[0].to_json()])
    (case,) = cases(made.check(made.rule("KVC-302", "fail", cut)))
    assert case.faults[0].steps == ("arrive r0 prompt 0:16", "step count=2")


def test_what_is_vllms_is_named_and_never_fails() -> None:
    for result in get_args(Result):
        finding = made.rule("VLL-201", result, made.fault("VLL-201", "vLLM"))
        (case,) = cases(made.check(finding))
        assert case.status in ("passed", "skipped")
        assert case.severity == "minor"
        if result == "fail":
            assert case.gist.startswith("vLLM's own, not held against the target:")
            assert any("a kind, at get_finished" in part for part in case.about)


def test_a_known_failure_is_skipped_with_reason_and_link() -> None:
    case = next(c for c in cases(made.everything()) if c.id == "KVC-801")
    assert case.known
    assert case.gist.startswith(f"KVC-801 known_fail: {made.KNOWN_REASON}")
    assert case.issues == (made.KNOWN["issue"],)
    assert case.notes == ()


def test_an_entry_that_has_changed_is_noted() -> None:
    fixed = {**made.KNOWN, "status": "fixed", "message": "KVC-801 is fixed: remove this entry."}
    (case,) = cases(made.check(made.rule("KVC-801", known=[fixed])))
    assert case.status == "passed"
    assert not case.known
    assert case.notes == ("KVC-801 is fixed: remove this entry.",)
    assert case.notes[0] in case.about


def test_a_pass_in_the_tolerant_reading_says_so() -> None:
    (case,) = cases(made.check(made.rule("KVC-301", reason="in the tolerant reading")))
    assert case.status == "passed"
    assert "Kept in the tolerant reading." in case.about


def test_an_unconfirmed_fault_says_so() -> None:
    case = next(c for c in cases(made.everything()) if c.id == "KVC-303")
    assert case.gist.startswith("KVC-303 inconclusive: seen once")
    assert "NOT CONFIRMED" in case.text


def test_the_process_is_a_case_only_when_it_died() -> None:
    assert [c.id for c in cases(made.check(made.rule("KVC-001")))] == ["KVC-001"]
    assert process_case([]).status == "passed"


def test_no_text_holds_what_xml_forbids() -> None:
    assert legible("a\x00\x1b\ud800\ufffeb\t\n\U0001f600é") == "ab\t\n\U0001f600é"
    for case in cases(made.everything()):
        for text in (case.gist, case.text, *case.about, *(f.table for f in case.faults)):
            assert text == legible(text)
