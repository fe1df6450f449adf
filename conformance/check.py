"""The conformance check as one plain function: explore, confirm, shrink, judge."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvconform.conformance.known import KnownFailures, Stand
from kvconform.conformance.minimise import MAX_RUNS
from kvconform.conformance.pool import Death, Done, Limits, Pool
from kvconform.conformance.profiles import find as find_profile
from kvconform.conformance.rules import tolerated
from kvconform.conformance.units import Found, Job, Result, Unit, merge, plan
from kvconform.conformance.unreachable import Hole, holes
from kvconform.conformance.verdict import Finding, Verdict, judge
from kvconform.faults import devices
from kvconform.faults.packages import NAMES, possible
from kvconform.scenario.errors import UsageError
from kvconform.scenario.known import Known
from kvconform.scenario.scenario import Scenario
from kvconform.scenario.shape import Shape
from kvconform.scenario.target import Target
from kvconform.scenario.violation import Fingerprint

LEVELS: dict[str, str] = {
    "L0": "shape: what the class shows without being run",
    "L1": "life cycle: fixed scenarios",
    "L2": "each fault package alone",
    "L3": "chaos: all packages, drawn for each run",
    "L4": "soak: long runs of chats, ten times as many; give it a --budget",
}

ORDERS: Mapping[str, frozenset[str]] = {
    "plain": frozenset({"route", "restart"}),
    "transport": frozenset(
        {
            "route",
            "repeat",
            "hold",
            "release",
            "drop",
            "busy",
            "refuse",
            "forget",
            "fail",
            "fail-save",
            "cut",
            "corrupt",
            "restart",
        }
    ),
    "mooncake": frozenset({"route", "hold", "release", "fail", "cut"}),
}
"""What each world can be told to do (see ``faults``)."""


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
        processes: processes that the target lives in; 0: in this one, where a target that
            crashes takes everything down.
        limits: what a process may use.
        known: known failures (see ``reports/known.py``).
    """

    level: str = "L3"
    profile: str | None = None
    faults: frozenset[str] = frozenset(NAMES)
    shape: Mapping[str, Any] = field(default_factory=dict)
    examples: int = 200
    seed: int = 1
    budget: float | None = None
    shrink_runs: int = MAX_RUNS
    processes: int = 0
    limits: Limits = field(default_factory=Limits)
    known: tuple[Known, ...] = ()


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
        coverage: ``fault/state/phase`` that occurred, with how often.
        progress: totals.
        vllm: the installed vLLM's version.
        contract: its contract: ``hash``, the known release that it ``resembles``, ``changes``.
        cut_short: the budget ended before the examples did.
        deaths: processes that the target took down, but for those that are known failures.
        shapes: per ``field=value`` of the shape, how many runs had it.
        refused: what the target said to shapes that it does not serve, with how often.
        stands: how the entries of known failures stand that concern the target.
        faults: packages that its runs could use.
    """

    target: Target
    options: Options
    verdict: Verdict
    features: dict[str, str]
    coverage: Counter[str]
    progress: Progress
    vllm: str = ""
    contract: Mapping[str, Any] = field(default_factory=dict)
    cut_short: bool = False
    deaths: list[Death] = field(default_factory=list)
    shapes: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    stands: list[Stand] = field(default_factory=list)
    faults: frozenset[str] = frozenset()

    @property
    def holes(self) -> list[Hole]:
        """Cells of fault, state and phase that no run has met."""
        return holes(self.coverage, self.faults, self.target.class_name)

    @property
    def findings(self) -> list[Finding]:
        """All faults, in the order of the rules."""
        return [f for v in self.verdict.rules for f in v.findings]


Tell = Callable[[Progress], None]


def check_connector(
    target: Target, options: Options | None = None, tell: Tell = lambda _: None
) -> Checked:
    """Check a connector against the contract.

    Args:
        target: the connector.
        options: how much, and what.
        tell: hears of progress.

    Raises:
        UsageError: the target cannot be loaded or set up, or an option is wrong.
        HarnessError: kvconform itself failed.
    """
    options = options or Options()
    find_profile(options.profile or target.profile)
    check = _Check(target, options, tell)
    if options.processes < 1:
        devices.prepare(target.device)
        return check.run(check.here)
    with Pool(options.processes, options.limits, check.at_work, target.device) as pool:
        return check.run(pool.map)


class _Check:
    """One check under way."""

    def __init__(self, target: Target, options: Options, tell: Tell) -> None:
        self.target = target
        self.options = options
        self.progress = Progress("start")
        self.total = Result()
        self.deaths: list[Death] = []
        self._tell = tell
        self._began = self._ready = time.monotonic()
        self._found: dict[Fingerprint, Found] = {}
        tolerated(target.tolerant)
        self._known = KnownFailures(options.known, target)
        self._fixed = dict(target.shape) | dict(options.shape)
        self._profile = find_profile(options.profile or target.profile)
        if self._profile.composed and target.children:
            raise UsageError(
                f"The target {target.name!r} is a composition itself: check it without --profile."
            )
        try:
            shape = Shape().fixed(self._fixed)
        except ValueError as error:
            raise UsageError(f"--shape: {error}.") from None
        if shape.topology == "pd" and not target.dialect:
            raise UsageError(
                f"--shape topology=pd needs the dialect of the target {target.name!r}: what its "
                "requests carry from prefill to decode (key 'dialect' of a target's TOML file)."
            )

    # -- doing jobs -------------------------------------------------------------------------------

    def here(self, jobs: Sequence[Job]) -> Iterable[Done]:
        """Do jobs in this process."""
        from kvconform.conformance.work import do  # it brings vLLM along

        for index, job in enumerate(jobs):
            yield Done(index, do(job, lambda r: self.at_work([r.examples, r.steps, len(r.found)])))

    def at_work(self, now: list[int]) -> None:
        """Jobs at work have come so far."""
        total, progress = self.total, self.progress
        progress.examples = total.examples + now[0]
        progress.steps = total.steps + now[1]
        progress.checked_steps = total.checked_steps
        progress.findings = len(total.found) + now[2]
        progress.seconds = time.monotonic() - self._began
        self._tell(progress)

    def _job(self, unit: Unit) -> Job:
        budget = self.options.budget
        until = self._ready + budget if budget is not None else None
        return Job(self.target, unit, self._fixed, until, self._profile.composed)

    # -- the whole --------------------------------------------------------------------------------

    def run(self, work: Callable[[Sequence[Job]], Iterable[Done]]) -> Checked:
        """Explore, settle, judge."""
        options, target = self.options, self.target
        level = list(LEVELS).index(options.level)
        apart = bool(target.dialect) and self._fixed.get("topology") != "store"
        faults = options.faults & possible(
            ORDERS[target.world], apart, target.features, target.device != "cpu"
        )
        static, *units = plan(level, faults, options.examples, options.seed)
        self._explore(work, [static])
        self._ready = time.monotonic()  # a budget is for exploring, not for importing vLLM
        broken = {f.violation.fingerprint.rule for f in self.total.found}
        explored = bool(units) and "KVC-001" not in broken  # what cannot be made is not run
        self._recall(work if explored else None)
        if explored:
            self._explore(work, units)
        if self.total.refused and not self.total.examples:
            raise UsageError(next(iter(self.total.refused)))
        findings = self._settle(work)
        verdict = judge(
            self._profile,
            frozenset(self.total.features),
            findings,
            self.total.reached,
            explored=explored,
            vllm=self.total.vllm,
            tolerant=frozenset(target.tolerant),
            target=target.class_name,
        )
        self.at_work([0, 0, 0])
        return Checked(
            target,
            options,
            verdict,
            self.total.features,
            self.total.coverage,
            self.progress,
            self.total.vllm,
            self.total.contract,
            self.total.cut_short,
            self.deaths,
            self.total.shapes,
            self.total.refused,
            self._known.stands,
            faults if explored else frozenset(),
        )

    def _recall(self, work: Callable[[Sequence[Job]], Iterable[Done]] | None) -> None:
        """See what has become of the known failures."""
        self.progress.phase = "known failures"

        def play(units: Sequence[Unit]) -> Iterable[Done]:
            return work([self._job(u) for u in units]) if work else ()

        self._known.look(list(self.total.found), self.total.vllm, play if work else None)
        self.deaths += self._known.deaths
        for found in self._known.new:
            merge(self.total.found, self._found, found)

    def _explore(self, work: Callable[[Sequence[Job]], Iterable[Done]], units: list[Unit]) -> None:
        self.progress.phase = units[-1].level
        done = sorted(work([self._job(u) for u in units]), key=lambda d: d.index)
        # Added in the order of the units, so that nothing depends on who was quickest.
        for one in done:
            if one.death is not None and not self._known.excuses_death(one.death):
                self.deaths.append(one.death)
            if one.result is not None:
                self._add(one.result)

    def _add(self, result: Result) -> None:
        total = self.total
        total.reached.update(result.reached)
        total.coverage.update(result.coverage)
        total.shapes.update(result.shapes)
        total.refused.update(result.refused)
        total.examples += result.examples
        total.steps += result.steps
        total.checked_steps += result.checked_steps
        total.features.update(result.features)
        total.vllm = total.vllm or result.vllm
        total.contract = total.contract or result.contract
        total.cut_short |= result.cut_short
        for found in result.found:
            merge(total.found, self._found, found)

    def _settle(self, work: Callable[[Sequence[Job]], Iterable[Done]]) -> list[Finding]:
        """Confirm and shrink what was found."""
        self.progress.phase = "shrinking"
        known = self._known
        open_ones = [
            f for f in self.total.found if not known.excuses(f.violation.fingerprint, f.runs)
        ]
        findings = [
            *known.findings,
            *(Finding(f.violation, Scenario(), known=known.entry(f.violation.fingerprint))
              for f in open_ones if not f.scenario.actions),
        ]  # fmt: skip
        dynamic = [f for f in open_ones if f.scenario.actions]
        jobs = [
            self._job(
                Unit(
                    "settle",
                    "shrinking",
                    scenario=f.scenario.to_json(),
                    fingerprint=f.violation.fingerprint,
                    shrink_runs=self.options.shrink_runs,
                )
            )
            for f in dynamic
        ]
        for one in sorted(work(jobs), key=lambda d: d.index):
            found = dynamic[one.index]
            if one.death is not None:
                self.deaths.append(one.death)
            settled = one.result.found[0] if one.result else found
            findings.append(
                Finding(
                    settled.violation,
                    settled.scenario,
                    settled.trace(),
                    found.runs,
                    settled.original or len(found.scenario.actions),
                    settled.confirmed and one.result is not None,
                    known.entry(settled.violation.fingerprint),
                )
            )
        return findings
