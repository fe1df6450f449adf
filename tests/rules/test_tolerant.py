"""The tolerant reading lets pass what it names, and no more; what vLLM makes of that is vLLM's."""

from __future__ import annotations

import dataclasses
import inspect

import pytest

from kvconform.conformance.check import Options, check_connector
from kvconform.conformance.checks import ALL
from kvconform.conformance.rules import BY_ID, RULES, tolerated
from kvconform.conformance.run import play
from kvconform.conformance.verdict import EXIT_FAILED, exit_code
from kvconform.connectors.targets.resolve import resolve, with_flags
from kvconform.connectors.zoo import completion
from kvconform.scenario.actions import Abort, Arrive
from kvconform.scenario.errors import UsageError
from kvconform.scenario.prompt import Prompt
from kvconform.scenario.scenario import Scenario
from kvconform.scenario.violation import Fingerprint
from tests.rules.targets import wrong_target

LATE = Scenario(actions=(Arrive(Prompt(0, 1)), Abort(mid_step=True)))
NEVER = Scenario(actions=(Arrive(Prompt(0, 16)),))


def seen(cls: type, scenario: Scenario, *tolerant: str) -> Fingerprint:
    target = dataclasses.replace(wrong_target(cls), tolerant=tolerant)
    violation = play(target, scenario).violation
    assert violation is not None
    return violation.fingerprint


def test_a_late_completion_is_the_connectors_fault_or_vllms() -> None:
    strict = seen(completion.ReportsCleanUp, LATE)
    assert (strict.rule, strict.kind) == ("KVC-301", "forgotten, recving")
    tolerant = seen(completion.ReportsCleanUp, LATE, "KVC-301")
    assert (tolerant.rule, tolerant.side) == ("VLL-001", "vLLM")
    assert "_update_from_kv_xfer_finished" in tolerant.where


def test_what_the_reading_does_not_name_is_wrong_as_ever() -> None:
    assert seen(completion.ReportsJobs, NEVER, "KVC-301").kind == "never existed"


def test_every_reading_names_ways_that_a_check_knows() -> None:
    for rule in RULES:
        if rule.tolerant is None:
            continue
        assert rule.tolerant.text
        assert rule.tolerant.source
        sources = [inspect.getsource(c) for c in ALL if rule.id in (c.rule, *c.also)]
        for kind in rule.tolerant.kinds:
            head = kind.partition(",")[0]  # the direction follows
            assert any(f'"{head},' in source for source in sources), kind


def test_who_asks_for_a_reading_that_there_is_not() -> None:
    assert tolerated(["kvc-301"]) == {"KVC-301"}
    with pytest.raises(UsageError, match="KVC-302 has one reading only; KVC-301 can be"):
        tolerated(["KVC-302"])
    with pytest.raises(UsageError, match="one reading only"):
        check_connector(dataclasses.replace(resolve("ascend"), tolerant=("KVC-302",)))


def test_the_verdict_says_how_a_rule_was_read() -> None:
    target = with_flags(
        wrong_target(completion.ReportsCleanUp), role=None, extra=None, tolerant="kvc-301"
    )
    assert target.tolerant == ("KVC-301",)
    options = Options(level="L1", shrink_runs=10)
    strict = check_connector(dataclasses.replace(target, tolerant=()), options)
    assert strict.verdict.of("KVC-301").result == "fail"
    assert exit_code(strict.verdict) == EXIT_FAILED
    checked = check_connector(target, options)
    verdict = checked.verdict.of("KVC-301")
    assert verdict.result == "pass"
    assert verdict.reason == "in the tolerant reading"
    (own,) = (f for f in checked.findings if f.violation.fingerprint.rule == "VLL-001")
    assert own.violation.fingerprint.side == "vLLM"
    assert BY_ID["KVC-301"].level == "must"
