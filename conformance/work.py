"""How a unit of work is done, in this process: it needs vLLM, which planning does not."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from kvconform.conformance import static
from kvconform.conformance.lifecycle import SCENARIOS, packages_of
from kvconform.conformance.machine import explore, make_machine
from kvconform.conformance.minimise import Minimiser
from kvconform.conformance.rules import BY_ID
from kvconform.conformance.run import play
from kvconform.conformance.units import COUNTED, RIGHT_HERE, Found, Job, Result, merge
from kvconform.conformance.verdict import is_core
from kvconform.engine import compat
from kvconform.engine.compat import contract, vllm_version
from kvconform.faults.transport import make_world
from kvconform.scenario.errors import RefusedError
from kvconform.scenario.releases import within
from kvconform.scenario.scenario import Scenario
from kvconform.scenario.violation import Fingerprint, Violation

Tell = Callable[[Result], None]
"""Hears of a unit's result so far, after each run."""


def do(job: Job, tell: Tell = lambda _: None) -> Result:
    """Do one unit in this process.

    Raises:
        UsageError: the target cannot be loaded or set up.
    """
    unit, target = job.unit, job.target
    result = Result()

    def spent() -> bool:
        over = job.until is not None and time.monotonic() > job.until
        result.cut_short |= over
        return over

    cls = static.load(target)
    gather = _Gatherer(result, tell)
    match unit.kind:
        case "static":
            result.vllm = vllm_version()
            result.contract = contract.summary()
            offers = make_world(target.world).offers
            result.features = static.features(cls, target, offers, job.beside)
            result.found = [Found(v, Scenario()) for v in static.judge(cls, target)]
        case "life-cycle":
            _life_cycle(job, gather, spent)
        case "explore":
            has = static.features(cls, target, make_world(target.world).offers)
            machine = make_machine(
                target, frozenset(unit.packages), job.fixed, gather.ended,
                features=frozenset(has), refused=gather.refused, stop=spent, chats=unit.chats,
                composed=job.composed,
            )  # fmt: skip
            explore(machine, unit.examples, unit.seed, unit.moves)
        case "hunt":
            _hunt(job, cls, gather, spent)
        case "settle":
            scenario = Scenario.from_json(unit.scenario)
            assert unit.fingerprint is not None
            result.found = [_settle(job, scenario, unit.fingerprint, lambda: tell(result))]
        case "play":
            try:
                result.found = _play(job)
            except RefusedError as error:
                gather.refused(error)
    return result


class _Gatherer:
    """Adds runs to a result; one scenario is kept for each fingerprint, the rest is counted."""

    def __init__(self, result: Result, tell: Tell) -> None:
        self.result = result
        self._by_fingerprint: dict[Fingerprint, Found] = {}
        self.tell = tell

    def refused(self, error: RefusedError) -> None:
        """The target does not serve a shape: that is its right."""
        self.result.refused[str(error)] += 1

    def ended(self, outcome: Any) -> None:
        """A run ended. A fingerprint once found is muted: exploring goes on."""
        result = self.result
        result.examples += 1
        result.steps += outcome.steps
        result.checked_steps += outcome.checked_steps
        result.reached.update(outcome.reached)
        shape = outcome.scenario.shape
        result.shapes.update(f"{name}={getattr(shape, name)}" for name in COUNTED)
        result.coverage.update({"/".join(cell): n for cell, n in outcome.coverage.items()})
        violation = outcome.violation
        if violation is not None:
            merge(result.found, self._by_fingerprint, Found(violation, outcome.scenario))
        self.tell(result)


def _life_cycle(job: Job, gather: _Gatherer, spent: Callable[[], bool]) -> None:
    """L1: the fixed scenarios that use only the packages asked for."""
    places = ("before", "after")
    groups = compat.serves_groups(job.target)
    for number, scenario in enumerate(SCENARIOS.values()):
        if scenario.shape.window and not groups:
            continue
        if packages_of(scenario) <= set(job.unit.packages) and not spent():
            beside = {"beside": places[number % 2]} if job.composed else {}
            try:
                shape = scenario.shape.fixed(beside | dict(job.fixed))
            except ValueError:
                continue  # what is fixed leaves no room for what this one is about
            try:
                gather.ended(play(job.target, Scenario(shape, scenario.actions)))
            except RefusedError as error:
                gather.refused(error)


def _hunt(job: Job, cls: Any, gather: _Gatherer, spent: Callable[[], bool]) -> None:
    """Look for one fault, and stop there."""
    unit, target, result = job.unit, job.target, gather.result
    if not within(vllm_version(), "", unit.until):
        result.refused[RIGHT_HERE] += 1
        return
    began = time.process_time()

    def prey() -> Iterator[int]:
        for index, found in enumerate(result.found):
            rule = found.violation.fingerprint.rule
            if is_core(BY_ID[rule]) or rule in unit.prey:
                yield index

    def over() -> bool:
        caught = any(True for _ in prey())
        if caught and not result.seconds:
            result.seconds = round(time.process_time() - began, 2)
        tired = unit.seconds and time.process_time() - began > unit.seconds
        return caught or bool(tired) or spent()

    result.found = [Found(v, Scenario()) for v in static.judge(cls, target)]
    _life_cycle(job, gather, over)
    if not over():
        has = static.features(cls, target, make_world(target.world).offers)
        machine = make_machine(
            target, frozenset(unit.packages), job.fixed, gather.ended,
            features=frozenset(has), refused=gather.refused, stop=over,
        )  # fmt: skip
        explore(machine, unit.examples, unit.seed, unit.moves)
    result.seconds = result.seconds or round(time.process_time() - began, 2)
    for index in prey():  # the first is the one that counts
        found = result.found[index]
        if found.scenario.actions:  # else it is seen in the class alone
            result.found[index] = _settle(
                job, found.scenario, found.violation.fingerprint, lambda: gather.tell(result)
            )
        break


def _play(job: Job) -> list[Found]:
    """What a scenario shows, and whether it does so twice; none where nothing is wrong.

    What the class shows without a run is looked for in the class.
    """
    target, wanted = job.target, job.unit.fingerprint
    scenario = Scenario.from_json(job.unit.scenario)
    if wanted is not None and BY_ID[wanted.rule].is_static:
        broken = static.judge(static.load(target), target)
        broken.sort(key=lambda v: v.fingerprint != wanted)  # the one that is looked for comes first
        return [Found(v, Scenario()) for v in broken[:1]]
    outcome = play(target, scenario)
    if outcome.violation is None:
        return []
    again = play(target, scenario).violation
    events = [e.to_json() for e in outcome.trace.events]
    confirmed = outcome.violation.same_as(again)
    return [Found(outcome.violation, outcome.scenario, confirmed=confirmed, events=events)]


def _settle(
    job: Job, scenario: Scenario, fingerprint: Fingerprint, tell: Callable[[], None]
) -> Found:
    """Confirm a fault by replay in fresh engines, and shrink it."""
    unit = job.unit
    original = len(scenario.actions)

    def fails(candidate: Scenario) -> bool:
        tell()
        try:
            violation = play(job.target, candidate).violation
        except RefusedError:
            return False
        return violation is not None and violation.fingerprint == fingerprint

    confirmed = fails(scenario) and fails(scenario)
    if confirmed:
        minimiser = Minimiser(fails, unit.shrink_runs, frozenset(job.fixed))
        scenario = minimiser.shrink(scenario)
    last, again = play(job.target, scenario), play(job.target, scenario)
    if last.violation is None or not last.violation.same_as(again.violation):
        confirmed = False
    violation = last.violation or again.violation
    if violation is None or violation.fingerprint != fingerprint:
        violation = Violation(fingerprint, "the same in every replay", "another outcome")
        confirmed = False
    events = [e.to_json() for e in last.trace.events]
    return Found(violation, scenario, original=original, confirmed=confirmed, events=events)
