"""Does the harness find what it should? Hunts each mutant of a zoo until the first fault.

The right connector is hunted in the same way, once for each set of shapes and packages that the
mutants need: it must survive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvconform.conformance.check import ORDERS
from kvconform.conformance.pool import Death, Limits, Pool
from kvconform.conformance.rules import BY_ID
from kvconform.conformance.units import RIGHT_HERE, Found, Job, Result, Unit
from kvconform.conformance.verdict import is_core
from kvconform.faults.devices import cann
from kvconform.faults.packages import NAMES, possible
from kvconform.scenario.target import Device, Target

EXAMPLES = 600
"""Runs that a hunt may take, beside the fixed scenarios."""

SECONDS = 60.0
"""CPU time that a hunt may take."""

SHRINK_RUNS = 150
"""What shrinking the scenario of a kill may cost."""


@dataclass(frozen=True, slots=True)
class Quarry:
    """What is hunted.

    Attributes:
        name: its name.
        target: the wrong connector, or the right one over a wrong scheduler.
        expected: rules of which one has to notice, by what the defect breaks; of who is right,
            those of vLLM that must not.
        side: who makes the mistake.
        shape: fields of the shape that it needs.
        faults: packages that it needs; empty: all.
        until: last vLLM on which it is wrong; empty: it still is.
    """

    name: str
    target: Target
    expected: frozenset[str] = frozenset()
    side: str = ""
    shape: Mapping[str, Any] = field(default_factory=dict)
    faults: tuple[str, ...] = ()
    until: str = ""


@dataclass(frozen=True, slots=True)
class Hunt:
    """How a hunt ended.

    Attributes:
        name: of the quarry.
        killed: a fault was found (of a right connector: it was accused).
        rule: which rule noticed.
        side: whom it named.
        kind: how the rule was broken.
        expected: whether it was one of those that have to notice.
        right_side: whether the side is right.
        examples: runs until then.
        seconds: CPU time until then.
        actions: of the shrunk scenario.
        right_here: it was not hunted: on this vLLM it is right.
        scenario: that scenario, as JSON.
    """

    name: str
    killed: bool
    rule: str = ""
    side: str = ""
    kind: str = ""
    expected: bool = False
    right_side: bool = False
    examples: int = 0
    seconds: float = 0.0
    actions: int = 0
    right_here: bool = False
    scenario: Mapping[str, Any] | None = None


def hunt_all(
    quarries: Sequence[Quarry],
    *,
    seed: int = 1,
    seconds: float = SECONDS,
    processes: int = 1,
    limits: Limits | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> Iterator[Hunt]:
    """Hunt them; yields each as it ends, in any order.

    Args:
        quarries: whom.
        seed: equal seeds hunt equally.
        seconds: CPU time that each hunt may take.
        processes: at most so many at once.
        limits: of each process.
        tell: hears a line of progress.

    Raises:
        UsageError: a target cannot be loaded or set up.
        HarnessError: kvconform itself failed.
    """
    # Where torch_npu is, vLLM imports it for whatever target.
    device: Device = "cpu" if cann.missing() else "ascend-sim"
    with Pool(processes, limits or Limits(), device=device) as pool:
        for done in pool.map([_job(quarry, seed, seconds) for quarry in quarries]):
            quarry = quarries[done.index]
            if done.death is not None:
                yield _killed_its_process(quarry, done.death)
                continue
            assert done.result is not None
            prey = _prey(quarry, done.result)
            if RIGHT_HERE in done.result.refused:
                yield Hunt(quarry.name, False, right_here=True)
            elif prey is None:
                tell(f"{quarry.name} lives")
                yield Hunt(quarry.name, False, examples=done.result.examples,
                           seconds=done.result.seconds)  # fmt: skip
            else:
                tell(f"{quarry.name} caught by {prey.violation.fingerprint.rule}")
                yield _hunt(quarry, done.result, prey)


def _job(quarry: Quarry, seed: int, seconds: float) -> Job:
    faults = frozenset(quarry.faults or NAMES) & possible(
        ORDERS[quarry.target.world],
        bool(quarry.target.dialect),
        quarry.target.features,
        quarry.target.device != "cpu",
    )
    unit = Unit(
        "hunt", "hunt", tuple(sorted(faults)), EXAMPLES, seed=seed * 1000 + 700,
        shrink_runs=SHRINK_RUNS, seconds=seconds, until=quarry.until,
        prey=tuple(sorted(_counts_as_well(quarry))),
    )  # fmt: skip
    return Job(quarry.target, unit, dict(quarry.shape), None)


def _prey(quarry: Quarry, result: Result) -> Found | None:
    """The first fault that counts."""
    for found in result.found:
        rule = found.violation.fingerprint.rule
        if is_core(BY_ID[rule]) or rule in _counts_as_well(quarry):
            return found
    return None


def _counts_as_well(quarry: Quarry) -> frozenset[str]:
    """Of the rules that have to notice: those of vLLM, if it is at fault, and the lenient ones."""
    own = quarry.side == "vLLM"
    return frozenset(
        rule for rule in quarry.expected
        if BY_ID[rule].level == "should" or (own and rule.startswith("VLL"))
    )  # fmt: skip


def _hunt(quarry: Quarry, result: Result, prey: Found) -> Hunt:
    fingerprint = prey.violation.fingerprint
    right = fingerprint.side in (quarry.side, "composition")
    return Hunt(
        quarry.name, prey.confirmed, fingerprint.rule, fingerprint.side, fingerprint.kind,
        expected=fingerprint.rule in quarry.expected, right_side=right, examples=result.examples,
        seconds=result.seconds, actions=len(prey.scenario.actions),
        scenario=prey.scenario.to_json(),
    )  # fmt: skip


def _killed_its_process(quarry: Quarry, death: Death) -> Hunt:
    side = death.hook.partition(":")[0]
    return Hunt(
        quarry.name, True, "KVC-010", side, death.how,
        expected="KVC-010" in quarry.expected, right_side=side in (quarry.side, "composition"),
        scenario=death.scenario,
    )  # fmt: skip
