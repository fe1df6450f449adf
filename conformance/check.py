"""The conformance check as one plain function: explore, confirm, shrink, judge."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from kvconform.conformance import static
from kvconform.conformance.lifecycle import SCENARIOS
from kvconform.conformance.machine import explore, make_machine
from kvconform.conformance.minimise import MAX_RUNS, Minimiser
from kvconform.conformance.profiles import find as find_profile
from kvconform.conformance.run import Outcome, play
from kvconform.conformance.verdict import Finding, Verdict, judge
from kvconform.faults.packages import NAMES, possible
from kvconform.faults.transport import make_world
from kvconform.scenario.scenario import Scenario
from kvconform.scenario.target import Target
from kvconform.scenario.violation import Fingerprint

Level = Literal["L0", "L1", "L2", "L3"]
LEVELS: dict[str, str] = {
    "L0": "shape: what the class shows without being run",
    "L1": "life cycle: fixed scenarios",
    "L2": "each fault package alone",
    "L3": "chaos: all packages, drawn for each run",
}
PACKAGE_EXAMPLES = 10
"""Runs of L2 for each fault package (a tenth of the examples at most)."""


@dataclass(frozen=True, slots=True)
class Options:
    """How much is explored, and what.

    Attributes:
        level: the highest level; levels are cumulative.
        profile: name of the profile; None: the target's own.
        faults: fault packages that runs may use.
        shape: fields of the shape that are not drawn.
        examples: runs of L3.
        seed: equal seeds explore equally.
        budget: seconds after which exploration stops, None: no limit. Shrinking is bounded by
            runs.
        shrink_runs: runs that shrinking one fault may cost.
    """

    level: str = "L3"
    profile: str | None = None
    faults: frozenset[str] = frozenset(NAMES)
    shape: Mapping[str, Any] = field(default_factory=dict)
    examples: int = 200
    seed: int = 1
    budget: float | None = None
    shrink_runs: int = MAX_RUNS


@dataclass(slots=True)
class Progress:
    """How far a check has come; the same object is updated all along."""

    phase: str = ""
    examples: int = 0
    steps: int = 0
    checked_steps: int = 0
    findings: int = 0
    seconds: float = 0.0


@dataclass(slots=True)
class Checked:
    """What a check found.

    Attributes:
        target: what was checked.
        options: how.
        verdict: the result, rule by rule.
        features: what the target has, each with how that was found.
        coverage: (action, request state) pairs that occurred.
        progress: totals.
        cut_short: the budget ended before the examples did.
    """

    target: Target
    options: Options
    verdict: Verdict
    features: dict[str, str]
    coverage: Counter[tuple[str, str]]
    progress: Progress
    cut_short: bool = False

    @property
    def findings(self) -> list[Finding]:
        """All faults, in the order of the rules."""
        return [f for v in self.verdict.rules for f in v.findings]


class _Collector:
    """Keeps one scenario per fingerprint; the rest is counted."""

    def __init__(self, progress: Progress, tell: Callable[[Progress], None]) -> None:
        self.progress = progress
        self.reached: Counter[str] = Counter()
        self.coverage: Counter[tuple[str, str]] = Counter()
        self.found: dict[Fingerprint, tuple[Outcome, int]] = {}
        self._tell = tell
        self._began = time.monotonic()

    def ended(self, outcome: Outcome) -> None:
        """A run ended. A fingerprint once found is muted: exploring goes on."""
        progress = self.progress
        progress.examples += 1
        progress.steps += outcome.steps
        progress.checked_steps += outcome.checked_steps
        progress.seconds = time.monotonic() - self._began
        self.reached.update(outcome.reached)
        self.coverage.update(outcome.coverage)
        if outcome.violation is not None:
            fingerprint = outcome.violation.fingerprint
            kept, count = self.found.get(fingerprint, (outcome, 0))
            if len(outcome.scenario.actions) < len(kept.scenario.actions):
                kept = outcome  # a shorter one is quicker to shrink
            self.found[fingerprint] = (kept, count + 1)
            progress.findings = len(self.found)
        self._tell(progress)


def check_connector(
    target: Target,
    options: Options | None = None,
    tell: Callable[[Progress], None] = lambda _: None,
) -> Checked:
    """Check a connector against the contract.

    Args:
        target: the connector.
        options: how much, and what.
        tell: hears of progress, after each run.

    Raises:
        UsageError: the target cannot be loaded or set up, or an option is wrong.
    """
    options = options or Options()
    profile = find_profile(options.profile or target.profile)
    progress = Progress("L0")
    collector = _Collector(progress, tell)
    began = time.monotonic()

    def spent() -> bool:
        return options.budget is not None and time.monotonic() - began > options.budget

    cls = static.load(target)
    offers = make_world(target.world).offers
    features = static.features(cls, target, offers)
    fixed = dict(target.shape) | dict(options.shape)
    findings = [Finding(v, Scenario()) for v in static.judge(cls, target)]
    level = list(LEVELS).index(options.level)
    # What cannot even be constructed is not run.
    runnable = not any(f.violation.fingerprint.rule == "KVC-001" for f in findings)
    if runnable and level >= 1:
        progress.phase = "L1"
        _life_cycle(target, fixed, options, collector, spent)
    packages = options.faults & possible(offers)
    if runnable and level >= 2:
        progress.phase = "L2"
        few = min(PACKAGE_EXAMPLES, max(1, options.examples // 10))
        for index, package in enumerate(sorted(packages)):
            machine = make_machine(target, frozenset({package}), fixed, collector.ended, stop=spent)
            explore(machine, few, options.seed * 1000 + index)
    if runnable and level >= 3:
        progress.phase = "L3"
        machine = make_machine(target, packages, fixed, collector.ended, stop=spent)
        explore(machine, options.examples, options.seed)
    cut_short = spent()
    progress.phase = "shrinking"
    for outcome, count in collector.found.values():
        findings.append(_settle(target, outcome, count, options, fixed, tell, progress))
    verdict = judge(
        profile,
        frozenset(features),
        findings,
        collector.reached,
        explored=runnable and level >= 1,
    )
    progress.phase = "done"
    progress.seconds = time.monotonic() - began
    return Checked(target, options, verdict, features, collector.coverage, progress, cut_short)


def _life_cycle(
    target: Target,
    fixed: Mapping[str, Any],
    options: Options,
    collector: _Collector,
    spent: Callable[[], bool],
) -> None:
    """L1: the fixed scenarios that use only the packages asked for."""
    import dataclasses

    for needed, scenario in _needs():
        if needed <= options.faults and not spent():
            shape = dataclasses.replace(scenario.shape, **fixed)
            collector.ended(play(target, Scenario(shape, scenario.actions)))


def _needs() -> list[tuple[frozenset[str], Scenario]]:
    """The fixed scenarios, each with the packages that it uses."""
    uses = {"hold": "delay", "release": "delay", "abort": "abort", "busy": "defer",
            "fail": "fail-load"}  # fmt: skip
    out = []
    for scenario in SCENARIOS.values():
        needed = {uses[a.do] for a in scenario.actions if a.do in uses}
        arrivals = [a for a in scenario.actions if a.do == "arrive"]
        if len(arrivals) > 1:
            needed.add("full-hit")
        if any(getattr(a, "salt", None) for a in arrivals):
            needed.add("tenants")
        for action in scenario.actions:
            if action.do == "reset":
                needed.add("preempt" if getattr(action, "running", False) else "full-hit")
        out.append((frozenset(needed), scenario))
    return out


def _settle(
    target: Target,
    outcome: Outcome,
    count: int,
    options: Options,
    fixed: Mapping[str, Any],
    tell: Callable[[Progress], None],
    progress: Progress,
) -> Finding:
    """Confirm a fault by replay in fresh engines, and shrink it."""
    assert outcome.violation is not None
    fingerprint = outcome.violation.fingerprint

    def fails(scenario: Scenario) -> bool:
        tell(progress)
        violation = play(target, scenario).violation
        return violation is not None and violation.fingerprint == fingerprint

    original = len(outcome.scenario.actions)
    if not (fails(outcome.scenario) and fails(outcome.scenario)):
        return Finding(outcome.violation, outcome.scenario, outcome.trace, count, original, False)
    small = Minimiser(fails, options.shrink_runs, frozenset(fixed)).shrink(outcome.scenario)
    last = play(target, small)
    again = play(target, small)
    assert last.violation is not None
    confirmed = last.violation == again.violation
    return Finding(last.violation, small, last.trace, count, original, confirmed)
