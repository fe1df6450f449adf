"""What vLLM itself owes: known defects come out as vLLM's, and its asserts as the rules behind."""

from __future__ import annotations

import importlib
import inspect
from collections import Counter
from typing import Literal

import pytest

from kvconform.conformance import static
from kvconform.conformance.check import ORDERS, Options, check_connector
from kvconform.conformance.checks.engine import _ASSERTS, rule_of_assert
from kvconform.conformance.profiles import find as find_profile
from kvconform.conformance.referee import Referee
from kvconform.conformance.rules import BY_ID, RULES
from kvconform.conformance.run import play
from kvconform.conformance.verdict import (
    EXIT_FAILED,
    EXIT_INCONCLUSIVE,
    EXIT_OK,
    Finding,
    exit_code,
    is_core,
    judge,
)
from kvconform.connectors.targets.resolve import resolve
from kvconform.scenario.actions import Abort, Action, Arrive, Fail, Reset, Step
from kvconform.scenario.prompt import Prompt
from kvconform.scenario.scenario import Scenario
from kvconform.scenario.shape import Shape
from kvconform.scenario.trace import Event, Kind
from kvconform.scenario.violation import Fingerprint, Violation

P = Prompt(0, 17)  # one block outside: a synchronous load

V_01: tuple[Action, ...] = (
    Arrive(P), Step(3), Reset(), Fail(), Arrive(P, 4), Step(), Abort(), Arrive(P, 3),
)  # fmt: skip
V_02: tuple[Action, ...] = (
    Arrive(P), Step(3), Reset(), Fail(), Arrive(P, 4), Arrive(P, 4), Step(), Abort(1),
)  # fmt: skip
V_03: tuple[Action, ...] = (Arrive(P), Step(4), Reset(), Fail(), Arrive(P, 4), Step(2))


V_04: tuple[Action, ...] = (
    Arrive(Prompt(0, 33)), Step(4), Reset(), Fail(1000), Arrive(Prompt(0, 33)), Step(16),
)  # fmt: skip
"""What fails is asked for over and over, unless the connector gives up: the reference does."""

KNOWN = (
    (V_01, Shape(), "VLL-201"),
    (V_02, Shape(), "VLL-201"),
    (V_03, Shape(async_scheduling=True), "VLL-202"),
)


@pytest.mark.parametrize(("actions", "shape", "rule"), KNOWN, ids=["V-01", "V-02", "V-03"])
def test_known_defects_are_vllms(actions: tuple[Action, ...], shape: Shape, rule: str) -> None:
    violation = play(resolve("ascend"), Scenario(shape, actions)).violation
    assert violation is not None
    assert violation.fingerprint.rule == rule
    assert violation.fingerprint.side == "vLLM"


@pytest.mark.parametrize(("policy", "rule"), [("recompute", "VLL-703"), ("fail", None)])
def test_vllm_asks_for_ever_for_what_it_should_recompute(
    policy: Literal["recompute", "fail"], rule: str | None
) -> None:
    scenario = Scenario(Shape(load_failure_policy=policy), V_04)
    violation = play(resolve("zoo:insists"), scenario).violation
    assert (violation and violation.fingerprint.rule) == rule
    assert violation is None or violation.fingerprint.side == "vLLM"


@pytest.mark.parametrize(
    ("actions", "shape"),
    [
        (V_01, Shape(load_failure_policy="fail")),
        (V_02, Shape(load_failure_policy="fail")),
        (V_03, Shape()),
        (V_04, Shape()),
        (V_03, Shape(async_scheduling=True, load_failure_policy="fail")),
    ],
)
def test_where_vllm_is_right_nothing_is_said(actions: tuple[Action, ...], shape: Shape) -> None:
    assert play(resolve("ascend"), Scenario(shape, actions)).violation is None


def test_vllms_own_faults_do_not_fail_the_target() -> None:
    # With failed synchronous loads under AsyncScheduler, V-03 is found in one run of ten.
    faults = frozenset({"full-hit", "fail-load"})
    shape = {"async_scheduling": True, "load_failure_policy": "recompute"}
    options = Options(faults=faults, shape=shape, seed=1, examples=80, shrink_runs=20)
    checked = check_connector(resolve("ascend"), options)
    assert {f.violation.fingerprint.side for f in checked.findings} == {"vLLM"}
    assert exit_code(checked.verdict) == EXIT_INCONCLUSIVE  # for want of the other packages
    assert not [v for v in checked.verdict.rules if v.result == "fail" and is_core(v.rule)]


def test_a_target_is_conformant_when_only_vllm_is_at_fault() -> None:
    ascend = resolve("ascend")
    findings = []
    for actions, shape, _ in KNOWN:
        scenario = Scenario(shape, actions)
        violation = play(ascend, scenario).violation
        assert violation is not None
        findings.append(Finding(violation, scenario))
    has = static.features(static.load(ascend), ascend, ORDERS[ascend.world])
    everything = Counter(r.id for r in RULES)
    verdict = judge(find_profile(ascend.profile), frozenset(has), findings, everything)
    assert {v.rule.id for v in verdict.rules if v.result == "fail"} == {"VLL-201", "VLL-202"}
    assert verdict.result == "success"
    assert exit_code(verdict) == exit_code(verdict, strict=True) == EXIT_OK


def test_a_lenient_rule_fails_a_strict_check_only() -> None:
    violation = Violation(
        Fingerprint("KVC-406", "composition", "C", "still remembered", "C.x"), "nothing", "an id"
    )
    everything = Counter(r.id for r in RULES)
    features = frozenset(f for r in RULES for f in r.features)
    findings = [Finding(violation, Scenario())]
    verdict = judge(find_profile("store"), features, findings, everything)
    assert verdict.of("KVC-406").result == "fail"
    assert verdict.result == "success"
    assert (exit_code(verdict), exit_code(verdict, strict=True)) == (EXIT_OK, EXIT_FAILED)


MODULES = (
    "vllm.v1.core.sched.scheduler",
    "vllm.v1.worker.kv_connector_model_runner_mixin",
)


@pytest.mark.parametrize(("function", "text", "rule", "hook"), _ASSERTS)
def test_the_asserts_are_still_there(function: str, text: str, rule: str, hook: str) -> None:
    sources = []
    for name in MODULES:
        module = importlib.import_module(name)
        for cls in vars(module).values():
            if inspect.isclass(cls) and cls.__module__ == name and hasattr(cls, function):
                sources.append(inspect.getsource(inspect.unwrap(getattr(cls, function))))
    lines = [line for source in sources for line in source.splitlines() if text in line]
    assert any("assert" in line for line in lines)
    assert rule_of_assert(f"some.module:Cls.{function}", f"assert {text}") == (rule, hook)
    assert rule_of_assert("some.module:other", f"assert {text}") is None


@pytest.mark.parametrize(
    ("version", "holds"),
    [("0.11.0", True), ("0.27.1+cpu", True), ("0.32.0", False), ("0.27.1rc1", True), ("dev", True)],
)
def test_a_rule_holds_for_a_range_of_versions(version: str, holds: bool) -> None:
    assert BY_ID["VLL-101"].holds_for(version) is holds
    assert not BY_ID["KVC-601"].holds_for("0.11.0")


@pytest.mark.parametrize(("common", "rule"), [([2], None), ([1], "VLL-101")])
def test_blocks_that_only_some_requests_have_are_not_common(
    common: list[int], rule: str | None
) -> None:
    referee = Referee("Any", Shape())
    data = {"said": [2], "common": common, "requests": ["r0", "r1"]}
    referee.hear(Event(Kind.COMMON, 0, 1, data=data))
    found = referee.violation
    assert (found and found.fingerprint.rule) == rule
    assert found is None or found.fingerprint.side == "vLLM"


@pytest.mark.parametrize(("told", "rule"), [(False, "KVC-105"), (True, None)])
def test_a_lookup_may_change_with_what_the_workers_told(told: bool, rule: str | None) -> None:
    referee = Referee("Any", Shape())
    arrive = {"do": "arrive", "prompt": {"family": 0, "length": 33}}
    referee.hear(
        Event(Kind.ACTION, 0, 0, "r0", data={"action": arrive, "effect": True, "index": 0})
    )
    for answer in (32, 16):
        lookup = {"half": "scheduler half", "name": "get_num_new_matched_tokens", "local": 0,
                  "answer": (answer, False), "total": 33, "status": "WAITING"}  # fmt: skip
        referee.hear(Event(Kind.HOOK, 0, 1, "r0", data=lookup))
        update = {"half": "scheduler half", "name": "update_connector_output", "told": told}
        referee.hear(Event(Kind.HOOK, 0, 1, data=update))
    found = referee.violation
    assert (found and found.fingerprint.rule) == rule
