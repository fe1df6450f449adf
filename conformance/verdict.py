"""Verdicts: per rule, per profile, and the exit code that follows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from kvconform.conformance.profiles import Profile, applies
from kvconform.conformance.rules import RULES, Rule
from kvconform.scenario.known import Known
from kvconform.scenario.scenario import Scenario
from kvconform.scenario.trace import Event
from kvconform.scenario.violation import Violation

Result = Literal[
    "pass", "fail", "known_fail", "not_supported", "vacuous", "inconclusive", "untested"
]
ProfileResult = Literal["success", "partial", "inconclusive", "failure"]

EXIT_OK, EXIT_FAILED, EXIT_INCONCLUSIVE, EXIT_USAGE, EXIT_HARNESS, EXIT_KILLED = range(6)


@dataclass(slots=True)
class Finding:
    """A fault, with the smallest scenario known that shows it.

    Attributes:
        violation: from the last, smallest run.
        scenario: the actions of that run.
        trace: its events.
        runs: how many runs of the exploration showed it.
        original: number of actions before shrinking.
        confirmed: replays in fresh engines showed the same.
        known: the entry of the known failures that it has; None: it has none.
    """

    violation: Violation
    scenario: Scenario
    trace: list[Event] | None = None
    runs: int = 1
    original: int = 0
    confirmed: bool = True
    known: Known | None = None

    @property
    def excused(self) -> bool:
        """Whether it is a known failure, and its day is not over."""
        return self.known is not None and not self.known.expired


@dataclass(slots=True)
class RuleVerdict:
    """What is known about one rule."""

    rule: Rule
    result: Result
    reached: int
    findings: list[Finding] = field(default_factory=list)
    reason: str = ""


@dataclass(slots=True)
class Verdict:
    """What is known about a target under a profile."""

    profile: Profile
    result: ProfileResult
    rules: list[RuleVerdict]

    def of(self, rule_id: str) -> RuleVerdict:
        """One rule's verdict."""
        return next(v for v in self.rules if v.rule.id == rule_id)

    @property
    def vacuous(self) -> list[str]:
        """Core rules that were never provoked."""
        return [v.rule.id for v in self.rules if v.result == "vacuous" and is_core(v.rule)]


def is_core(rule: Rule) -> bool:
    """Whether a rule decides the profile's result."""
    return rule.level == "must" and rule.id.startswith("KVC")


def judge(
    profile: Profile,
    features: frozenset[str],
    findings: Iterable[Finding],
    reached: Counter[str],
    *,
    static_done: bool = True,
    explored: bool = True,
    vllm: str = "",
    tolerant: frozenset[str] = frozenset(),
    target: str = "",
) -> Verdict:
    """The verdict that follows from what was seen.

    Args:
        profile: what the target is held to.
        features: what it has.
        findings: faults found; unconfirmed ones make their rule inconclusive.
        reached: per rule, how often it was provoked.
        static_done: whether L0 was judged.
        explored: whether anything was run.
        vllm: the version that it ran on.
        tolerant: rules that were read tolerantly.
        target: its class; faults of others, in a composition, do not count. Empty: all do.
    """
    by_rule: dict[str, list[Finding]] = {}
    for finding in findings:
        by_rule.setdefault(finding.violation.fingerprint.rule, []).append(finding)
    verdicts = []
    for rule in RULES:
        all_found = by_rule.get(rule.id, [])
        own = [f for f in all_found if counts(f, target)]
        found = [f for f in own if not f.excused]
        count = reached[rule.id]
        result: Result
        reason = ""
        if any(f.confirmed and not f.violation.unsettled for f in found):
            result = "fail"
            reason = "; ".join(_again(f.known) for f in found if f.known)
        elif any(f.confirmed for f in found):
            names = sorted({n for f in found for n in f.violation.unsettled})
            result = "inconclusive"
            reason = f"what may still set it right cannot be seen: {', '.join(names)}"
        elif found:
            result, reason = "inconclusive", "seen once, and not again in a replay"
        elif own:
            result = "known_fail"
            reason = "; ".join(_put_up_with(f.known) for f in own if f.known)
        elif not rule.holds_for(vllm):
            result, reason = "not_supported", f"not a rule of vLLM {vllm}"
        elif not applies(rule, profile, features):
            result = "not_supported"
            reason = "needs " + ", ".join(sorted(rule.features - (features - profile.without)))
        elif rule.is_static:
            result = "pass" if static_done else "untested"
        elif not explored:
            result = "untested"
        else:
            result = "pass" if count else "vacuous"
            reason = "" if count else f"never reached: {rule.provoked}"
            if count and rule.id in tolerant:
                reason = "in the tolerant reading"
        verdicts.append(RuleVerdict(rule, result, count, all_found, reason))
    return Verdict(profile, _result(verdicts), verdicts)


def _put_up_with(known: Known) -> str:
    return f"known until {known.expires}: {known.reason} ({known.issue})"


def _again(known: Known) -> str:
    return f"known until {known.expires}, and that day is over ({known.issue})"


def counts(finding: Finding, target: str) -> bool:
    """Whether a fault is held against the class ``target``; one of a composition around it is not.

    Rules of vLLM's own are never held against anybody, whomever they name.
    """
    named = finding.violation.fingerprint
    return not target or named.target == target or named.rule.startswith("VLL")


def _result(verdicts: list[RuleVerdict]) -> ProfileResult:
    core = [v for v in verdicts if is_core(v.rule)]
    results = {v.result for v in core}
    if "fail" in results:
        return "failure"
    if results & {"vacuous", "inconclusive"}:
        return "inconclusive"
    if results & {"known_fail", "untested"}:
        return "partial"
    return "success"


def exit_code(verdict: Verdict, *, strict: bool = False, killed: bool = False) -> int:
    """The documented exit code; ``killed``: the target took a process down."""
    if killed:
        return EXIT_KILLED
    lenient = any(v.result == "fail" and v.rule.level == "should" for v in verdict.rules)
    if verdict.result == "failure" or (strict and lenient):
        return EXIT_FAILED
    if any(f for v in verdict.rules for f in v.findings if not (f.confirmed or f.excused)):
        return EXIT_HARNESS  # nondeterminism
    if verdict.result == "inconclusive" or (strict and verdict.result == "partial"):
        return EXIT_INCONCLUSIVE
    return EXIT_OK
