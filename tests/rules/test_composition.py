"""The target as a child of a composition, and compositions themselves: rules, and blame."""

from __future__ import annotations

import dataclasses
from collections import Counter
from dataclasses import dataclass

import pytest

from kvconform.conformance import jury
from kvconform.conformance.check import Options, check_connector
from kvconform.conformance.profiles import find as find_profile
from kvconform.conformance.rules import BY_ID
from kvconform.conformance.run import play
from kvconform.conformance.verdict import Finding, counts, judge
from kvconform.connectors.targets.resolve import resolve
from kvconform.connectors.zoo import composition, hooks, memory
from kvconform.engine import compose
from kvconform.engine.compat import vllm_version
from kvconform.faults.packages import NAMES
from kvconform.scenario.actions import (
    Abort,
    Action,
    Arrive,
    Busy,
    Corrupt,
    Fail,
    Forget,
    Hold,
    Release,
    Reset,
    Step,
)
from kvconform.scenario.errors import UsageError
from kvconform.scenario.prompt import Prompt
from kvconform.scenario.scenario import Scenario
from kvconform.scenario.shape import Beside, Shape
from kvconform.scenario.target import Target
from kvconform.scenario.violation import Side
from tests.rules.targets import ASCEND, wrong_target

MULTI = resolve("multi")
P = Prompt(0, 50)
SHORT = Prompt(0, 9)
SAVED: tuple[Action, ...] = (Arrive(P), Step(4), Reset())
AGAIN: tuple[Action, ...] = (*SAVED, Arrive(P))
AFTER = Shape(beside="after")
BEFORE = Shape(beside="before")


@dataclass(frozen=True)
class History:
    """What happens, who is wrong, and what comes of it."""

    target: Target
    rule: str
    kind: str
    side: Side
    actions: tuple[Action, ...]
    shape: Shape = Shape()  # noqa: RUF009 - it is frozen

    def __str__(self) -> str:
        return f"{self.rule}-{self.target.name}"


def zoo(name: str) -> Target:
    return resolve(f"zoo:{name}")


HISTORIES = (
    History(zoo("loads-all-the-same"), "KVC-805", "loads what it was not to", "scheduler half",
            AGAIN, AFTER),
    History(zoo("pulls-all-the-same"), "KVC-805", "loads what it was not to", "scheduler half",
            (Arrive(P), Step(3), Step(4, 1)), Shape(topology="pd", engines=2, beside="after")),
    History(zoo("reports-anyway"), "KVC-805", "reports another one's load", "worker half",
            (*SAVED, Hold("load"), Arrive(P), Step(3), Release()), AFTER),
    History(zoo("not-chosen-not-saved"), "KVC-505", "not found", "scheduler half",
            AGAIN, AFTER),
    History(zoo("first-loads"), "KVC-806", "another one than promised", "composition",
            (Arrive(SHORT), Step(3), Step(4, 1)), Shape(topology="pd", engines=2)),
    History(zoo("all-load"), "KVC-806", "several load", "composition", AGAIN),
    History(zoo("keeps-the-count"), "KVC-807", "before the last", "composition",
            (Hold("save"), Arrive(P), Step(3), Release(0), Step(2))),
    History(zoo("last-word"), "KVC-807", "another answer", "composition",
            (*SAVED, Forget(), Arrive(P), Step(8))),
    History(zoo("counts-by-itself"), "KVC-807", "never passed on", "composition",
            (Arrive(P),), Shape(tp=2)),
    History(zoo("swaps-directions"), "KVC-302", "finished, but not while loading", "worker half",
            (Arrive(P),)),
)  # fmt: skip
RIGHT = [(MULTI, Shape()), (ASCEND, AFTER), (ASCEND, BEFORE)]


@pytest.mark.parametrize("history", HISTORIES, ids=str)
def test_fires(history: History) -> None:
    violation = play(history.target, Scenario(history.shape, history.actions)).violation
    assert violation is not None
    found = violation.fingerprint
    assert (found.rule, found.kind, found.side) == (history.rule, history.kind, history.side)
    assert found.target == history.target.class_name


@pytest.mark.parametrize("history", HISTORIES, ids=str)
@pytest.mark.parametrize(("right", "shape"), RIGHT, ids=["multi", "after", "before"])
def test_right_compositions_survive(history: History, right: Target, shape: Shape) -> None:
    shape = dataclasses.replace(history.shape, beside=shape.beside)
    assert play(right, Scenario(shape, history.actions)).violation is None


@pytest.mark.parametrize("beside", ["before", "after"])
def test_what_a_companion_has_stored_is_damaged_too(beside: Beside) -> None:
    actions = (*SAVED, Corrupt(2), Arrive(P), Step())
    assert play(ASCEND, Scenario(Shape(beside=beside), actions)).violation is None


FAILS: tuple[Action, ...] = (*SAVED, Fail(), Arrive(P), Step())


@pytest.mark.parametrize("beside", ["before", "after"])
def test_a_childs_fault_is_the_childs(beside: Beside) -> None:
    shape = Shape(beside=beside)
    found = play(
        wrong_target(hooks.CancelsOnTheWorker), Scenario(shape, (Arrive(P), Abort()))
    ).violation
    assert found is not None
    named = found.fingerprint
    assert (named.rule, named.target) == ("KVC-010", "CancelsOnTheWorker")
    assert named.side == "scheduler half"
    assert not found.consequence  # nobody else raised


def test_a_child_that_is_not_chosen_is_not_to_blame() -> None:
    wrong = wrong_target(memory.KeepsPins)
    before, after = (play(wrong, Scenario(shape, FAILS)).violation for shape in (BEFORE, AFTER))
    assert before is not None
    assert (before.fingerprint.rule, before.fingerprint.target) == ("KVC-405", "KeepsPins")
    assert after is None  # it was the companion that loaded


def test_what_a_companion_does_is_not_held_against_the_target(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        compose, "COMPANION", f"{memory.KeepsPins.__module__}:{memory.KeepsPins.__name__}"
    )
    found = play(ASCEND, Scenario(AFTER, FAILS)).violation
    assert found is not None
    assert (found.fingerprint.rule, found.fingerprint.target) == ("KVC-405", jury.COMPANION)
    finding = Finding(found, Scenario(AFTER, FAILS))
    assert not counts(finding, ASCEND.class_name)
    profile = find_profile("multi")
    verdict = judge(profile, frozenset(), [finding], Counter(), target=ASCEND.class_name)
    assert verdict.of("KVC-405").result != "fail"
    assert verdict.of("KVC-405").findings == [finding]


def test_what_the_composition_does_is_vllms(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = composition.KeepsTheCount
    monkeypatch.setattr(compose, "MULTI", f"{wrong.__module__}:{wrong.__name__}")
    actions = (Hold("save"), Arrive(P), Step(3), Release(0), Step(2))
    found = play(ASCEND, Scenario(AFTER, actions)).violation
    assert found is not None
    named = found.fingerprint
    assert (named.rule, named.side, named.target) == ("KVC-807", "vLLM", "MultiConnector")


def test_a_composition_is_not_put_beside_another() -> None:
    with pytest.raises(UsageError, match="is a composition itself"):
        check_connector(MULTI, Options(level="L1", profile="multi"))
    with pytest.raises(UsageError, match="is a composition itself"):
        play(MULTI, Scenario(AFTER, ()))


def test_a_reset_that_a_child_has_not_heard_of_is_the_compositions() -> None:
    # See docs/findings.md.
    actions = (Arrive(Prompt(0, 49)), Step(4), Reset(connector=True), Arrive(Prompt(0, 50)))
    example = dataclasses.replace(resolve("example"), world="transport")
    found = play(example, Scenario(BEFORE, actions)).violation
    assert found is not None
    named = found.fingerprint
    assert (named.rule, named.side, named.target) == ("KVC-801", "vLLM", "MultiConnector")


def test_who_failed_to_load_reserves_its_blocks_against_itself() -> None:
    # See docs/findings.md. Those that are behind it are stuck as well.
    actions = (Fail(), Arrive(Prompt(0, 48)), Arrive(Prompt(0, 65)), Step(2), Step(1, 1))
    shape = Shape(num_blocks=11, topology="pd", engines=2, beside="after")
    found = play(ASCEND, Scenario(shape, actions)).violation
    reserves = vllm_version() == "0.32.0"
    assert (found is not None and found.fingerprint.rule == "VLL-701") or not reserves


def test_who_is_not_asked_again_is_not_put_off_by_the_connector() -> None:
    # The last one was put off once, and stands behind one that reserves its blocks against itself.
    actions = (
        Fail(2), Arrive(Prompt(0, 16, tail=15)), Step(), Step(1, 1), Arrive(Prompt(0, 16, tail=16)),
        Busy(), Arrive(Prompt(0, 31, tail=17, answer=15)), Step(3), Step(1, 1),
    )  # fmt: skip
    shape = Shape(num_blocks=14, topology="pd", engines=2, drafts=1)
    found = play(MULTI, Scenario(shape, actions)).violation
    assert found is None or found.fingerprint.rule == "VLL-701"
    if vllm_version() == "0.32.0":
        assert found is not None
        assert found.request == "r0d"  # it is stuck, and it is vLLM's


RULES = {"KVC-805", "KVC-806", "KVC-807"}


@pytest.mark.parametrize("rule", sorted(RULES))
def test_without_its_packages_a_rule_is_vacuous(rule: str) -> None:
    options = Options(faults=frozenset(NAMES) - BY_ID[rule].packages, examples=16, shrink_runs=5)
    verdict = check_connector(MULTI, options).verdict.of(rule)
    assert (verdict.result, verdict.reached) == ("vacuous", 0)


def test_alone_a_connector_is_not_asked() -> None:
    verdict = check_connector(ASCEND, Options(level="L1")).verdict
    assert {verdict.of(rule).result for rule in RULES} == {"not_supported"}


def test_all_are_judged_of_a_composition_and_one_of_a_child() -> None:
    whole = check_connector(MULTI, Options(examples=16, shrink_runs=5)).verdict
    assert {rule: whole.of(rule).result for rule in RULES} == dict.fromkeys(RULES, "pass")
    child = check_connector(ASCEND, Options(examples=16, profile="multi", shrink_runs=5)).verdict
    assert child.of("KVC-805").result == "pass"
    assert {child.of(rule).result for rule in RULES - {"KVC-805"}} == {"not_supported"}
