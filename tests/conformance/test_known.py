"""Known failures: excused while they fail and their day has not come, and no longer."""

from __future__ import annotations

import dataclasses
from collections import Counter

import pytest

from kvconform.conformance.check import Checked, Options, check_connector
from kvconform.conformance.known import KnownFailures
from kvconform.conformance.pool import Death, Done
from kvconform.conformance.profiles import find
from kvconform.conformance.rules import RULES
from kvconform.conformance.verdict import (
    EXIT_HARNESS,
    EXIT_INCONCLUSIVE,
    EXIT_OK,
    Finding,
    exit_code,
    judge,
)
from kvconform.connectors.targets.resolve import resolve
from kvconform.scenario.actions import Arrive, Step
from kvconform.scenario.known import Known
from kvconform.scenario.prompt import Prompt
from kvconform.scenario.scenario import Scenario
from kvconform.scenario.violation import Fingerprint, Violation, death_of
from tests.engine.plain import target as plain_target
from tests.rules.test_static import ShortHook

WRONG = resolve("zoo:full-hit-report")
RIGHT = resolve("ascend")
FAULT = Fingerprint(
    "KVC-302", "worker half", "FullHitReport", "neither waiting nor finished",
    "get_finished: finished_recving",
)  # fmt: skip
TWICE = Scenario(actions=(Arrive(Prompt(0, 16)), Step(2), Arrive(Prompt(0, 17))))
"""Of the second one all is found locally."""


def known(fingerprint: Fingerprint = FAULT, **more: object) -> Known:
    fields = {"reason": "a reason", "issue": "https://example.org/7", "expires": "2027-01-31"}
    return Known(fingerprint, **({"scenario": TWICE} | fields | more))  # type: ignore[arg-type]


def check(*entries: Known, level: str = "L1", target: object = WRONG) -> Checked:
    return check_connector(target, Options(level=level, known=entries, shrink_runs=20))  # type: ignore[arg-type]


def test_what_is_known_is_excused_and_shown() -> None:
    assert check().verdict.of("KVC-302").result == "fail"
    checked = check(known())
    verdict = checked.verdict.of("KVC-302")
    assert verdict.result == "known_fail"
    assert verdict.reason == "known until 2027-01-31: a reason (https://example.org/7)"
    (finding,) = verdict.findings
    assert finding.known == known()
    assert finding.scenario == TWICE
    assert finding.trace
    assert finding.runs  # the exploration came across it too
    assert [s.status for s in checked.stands] == ["known"]


def test_what_is_known_is_found_where_nothing_else_finds_it() -> None:
    quiet = dataclasses.replace(Options(level="L1", known=(known(),)), faults=frozenset())
    (finding,) = check_connector(WRONG, quiet).verdict.of("KVC-302").findings
    assert finding.excused
    assert finding.runs == 0


def test_what_has_expired_counts_again_and_says_so() -> None:
    checked = check(known(expired=True))
    verdict = checked.verdict.of("KVC-302")
    assert verdict.result == "fail"
    assert "known until 2027-01-31, and that day is over" in verdict.reason
    (stand,) = checked.stands
    assert stand.status == "expired"
    assert "counts again: mend it" in stand.message


def test_what_is_fixed_asks_to_be_removed() -> None:
    once = dataclasses.replace(TWICE, actions=TWICE.actions[:1])
    checked = check(known(scenario=once))
    (stand,) = checked.stands
    assert stand.status == "fixed"
    assert "Remove this entry from known.toml" in stand.message
    # The entry excuses nothing any more: what is found all the same counts.
    assert checked.verdict.of("KVC-302").result == "fail"


def test_what_fails_in_another_way_is_not_excused() -> None:
    other = dataclasses.replace(FAULT, kind="finished, but not while loading")
    checked = check(known(other))
    (stand,) = checked.stands
    assert stand.status == "changed"
    assert str(FAULT) in stand.message
    assert checked.verdict.of("KVC-302").result == "fail"


@pytest.mark.parametrize(
    ("entry", "level", "says"),
    [
        (known(), "L0", "needs a run"),
        (known(until="0.11.0"), "L1", "is not an entry for vLLM"),
        (known(since="9.0"), "L1", "is not an entry for vLLM"),
    ],
)
def test_what_is_not_replayed_excuses_nothing(entry: Known, level: str, says: str) -> None:
    checked = check(entry, level=level)
    (stand,) = checked.stands
    assert stand.status == "not replayed"
    assert says in stand.message
    assert checked.verdict.of("KVC-302").result == ("untested" if level == "L0" else "fail")


def test_entries_of_another_class_do_not_concern_it() -> None:
    checked = check(known(), level="L0", target=RIGHT)
    assert checked.stands == []


def test_what_the_class_shows_needs_no_run() -> None:
    target = plain_target(ShortHook)
    (finding,) = check(level="L0", target=target).verdict.of("KVC-002").findings
    entry = known(finding.violation.fingerprint, scenario=Scenario())
    checked = check(entry, level="L0", target=target)
    assert checked.verdict.of("KVC-002").result == "known_fail"
    again = check(dataclasses.replace(entry, expired=True), level="L0", target=target)
    assert again.verdict.of("KVC-002").result == "fail"
    gone = dataclasses.replace(entry.fingerprint, where="save_kv_layer")
    (stand,) = check(known(gone, scenario=Scenario()), level="L0", target=target).stands
    assert stand.status == "fixed"


def test_a_target_that_takes_its_process_down_can_be_known() -> None:
    death = Death("L1", "crash", "SIGSEGV", "worker half: start_load_kv", TWICE.to_json())
    entry = known(death_of(WRONG.class_name, "crash", death.hook))
    failures = KnownFailures([entry], WRONG)
    failures.look([], "0.32.0", lambda units: [Done(0, None, death)])
    assert failures.excuses_death(death)
    assert not failures.excuses_death(dataclasses.replace(death, hook="worker half: get_finished"))
    assert failures.deaths == []
    late = KnownFailures([dataclasses.replace(entry, expired=True)], WRONG)
    late.look([], "0.32.0", lambda units: [Done(0, None, death)])
    assert late.deaths == [death]


def test_exit_codes() -> None:
    def judged(*found: Finding, strict: bool = False) -> tuple[str, int]:
        every = {"async", "load-failure", "reset", "orders", "pd", "keeps"}
        reached = Counter({rule.id: 1 for rule in RULES})
        verdict = judge(find("store"), frozenset(every), found, reached)
        return verdict.of("KVC-302").result, exit_code(verdict, strict=strict)

    violation = Violation(FAULT, "nothing", "something")
    excused = Finding(violation, TWICE, known=known())
    flaky = dataclasses.replace(excused, confirmed=False)
    assert judged(excused) == ("known_fail", EXIT_OK)
    assert judged(excused, strict=True) == ("known_fail", EXIT_INCONCLUSIVE)
    assert judged(flaky) == ("known_fail", EXIT_OK)
    unknown = Finding(violation, TWICE, confirmed=False)
    assert judged(excused, unknown) == ("inconclusive", EXIT_HARNESS)
    assert judged(excused, Finding(violation, TWICE)) == ("fail", 1)
