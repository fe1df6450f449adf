"""Work units: what a check is cut into, and what came of them.

The cut depends on the options alone, never on how many processes do the work: the same results for
every ``-n``. Units and their results are plain data, so that they can cross a process boundary as
JSON.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from kvconform.scenario.codec import decode, encode
from kvconform.scenario.scenario import Scenario
from kvconform.scenario.target import Target
from kvconform.scenario.trace import Event
from kvconform.scenario.violation import Fingerprint, Violation

PARTS = 4
"""L3 is cut into so many parts, each with a seed of its own."""

PACKAGE_EXAMPLES = 10
"""Runs of L2 for each fault package (a tenth of the examples at most)."""

COUNTED = ("topology", "engines", "tp", "pp", "block_size", "drafts", "async_scheduling", "policy",
           "runner", "load_failure_policy", "prefix_caching", "window", "beside")  # fmt: skip
"""Fields of the shape that reports count."""

MOVES = 6
"""Moves of a run, of a few actions each."""

LONG_MOVES = 40
"""Moves of a run of L4."""

SOAK_PARTS = 10
"""L4 is cut into so many parts, each with as many runs as all of L3."""

RIGHT_HERE = "right on this vLLM"
"""A hunt that was not begun: its target is wrong on older releases only."""

UnitKind = Literal["static", "life-cycle", "explore", "hunt", "settle", "play"]


@dataclass(frozen=True, slots=True)
class Unit:
    """A piece of work.

    Attributes:
        kind: ``static``: L0 and the target's features. ``life-cycle``: the fixed scenarios.
            ``explore``: a machine's examples. ``hunt``: fixed scenarios and then examples, until
            the first fault, which is confirmed and shrunk. ``settle``: confirm and shrink one
            fault. ``play``: one scenario, twice.
        level: what it belongs to, for progress.
        packages: fault packages that its runs may use.
        examples: runs.
        moves: moves of a run.
        chats: whether its base traffic is chats, else strangers.
        seed: of the exploration.
        scenario: of ``settle`` and ``play``, as JSON.
        fingerprint: of ``settle``.
        shrink_runs: what shrinking may cost.
        seconds: of ``hunt``: CPU time that it may take; 0: any.
        until: of ``hunt``: last vLLM on which its target is wrong; empty: it still is.
        prey: of ``hunt``: rules that count as a fault beside those that a connector must keep.
    """

    kind: UnitKind
    level: str
    packages: tuple[str, ...] = ()
    examples: int = 0
    moves: int = MOVES
    chats: bool = False
    seed: int = 0
    scenario: Mapping[str, Any] | None = None
    fingerprint: Fingerprint | None = None
    shrink_runs: int = 0
    seconds: float = 0.0
    until: str = ""
    prey: tuple[str, ...] = ()

    def __str__(self) -> str:
        what = ",".join(self.packages) if self.level == "L2" else f"seed {self.seed}"
        return f"{self.level} {self.kind} {what}" if self.kind == "explore" else self.kind


@dataclass(slots=True)
class Found:
    """A fault that a unit came across."""

    violation: Violation
    scenario: Scenario
    runs: int = 1
    original: int = 0
    confirmed: bool = True
    events: list[dict[str, Any]] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """JSON data."""
        return {
            "violation": self.violation.to_json(),
            "scenario": self.scenario.to_json(),
            "runs": self.runs,
            "original": self.original,
            "confirmed": self.confirmed,
            "events": self.events,
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Found:
        """From JSON data."""
        return Found(
            Violation.from_json(data["violation"]),
            Scenario.from_json(data["scenario"]),
            data["runs"],
            data["original"],
            data["confirmed"],
            data["events"],
        )

    def trace(self) -> list[Event]:
        """The events of the run that showed it."""
        return [Event.from_json(e) for e in self.events]


@dataclass(slots=True)
class Result:
    """What came of a unit.

    Attributes:
        reached: per rule, how often it was provoked.
        coverage: ``fault/state/phase`` that occurred.
        examples: runs.
        steps: engine steps.
        checked_steps: those that scheduled a token or carried a connector event.
        found: faults, one for each fingerprint.
        features: of ``static``: what the target has, each with how that was found.
        vllm: of ``static``: the installed vLLM's version.
        contract: of ``static``: its contract, see ``engine/compat/contract.py``.
        cut_short: the time was over before the unit was done.
        shapes: per ``field=value`` of the shape, how many runs had it.
        refused: what the target said to shapes that it does not serve, with how often.
        seconds: of ``hunt``: CPU time until the first fault, or until it gave up.
    """

    reached: Counter[str] = field(default_factory=Counter)
    coverage: Counter[str] = field(default_factory=Counter)
    examples: int = 0
    steps: int = 0
    checked_steps: int = 0
    found: list[Found] = field(default_factory=list)
    features: dict[str, str] = field(default_factory=dict)
    vllm: str = ""
    contract: dict[str, Any] = field(default_factory=dict)
    cut_short: bool = False
    shapes: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """JSON data."""
        return {
            "reached": dict(self.reached),
            "coverage": dict(self.coverage),
            "examples": self.examples,
            "steps": self.steps,
            "checked_steps": self.checked_steps,
            "found": [f.to_json() for f in self.found],
            "features": self.features,
            "vllm": self.vllm,
            "contract": self.contract,
            "cut_short": self.cut_short,
            "shapes": dict(self.shapes),
            "refused": dict(self.refused),
            "seconds": self.seconds,
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Result:
        """From JSON data."""
        return Result(
            Counter(data["reached"]),
            Counter(data["coverage"]),
            data["examples"],
            data["steps"],
            data["checked_steps"],
            [Found.from_json(f) for f in data["found"]],
            dict(data["features"]),
            data["vllm"],
            dict(data["contract"]),
            data["cut_short"],
            Counter(data["shapes"]),
            Counter(data["refused"]),
            data["seconds"],
        )


@dataclass(frozen=True, slots=True)
class Job:
    """A unit with all that a process needs to do it.

    Attributes:
        target: the connector under test.
        unit: the piece of work.
        fixed: fields of the shape that are not drawn.
        until: when exploring ends, on the machine's monotonic clock; None: no limit.
        composed: the target stands beside a companion, now before it and now after it.
    """

    target: Target
    unit: Unit
    fixed: Mapping[str, Any] = field(default_factory=dict)
    until: float | None = None
    composed: bool = False

    @property
    def beside(self) -> bool:
        """Whether the target is ever a child of vLLM's MultiConnector."""
        return self.composed or self.fixed.get("beside", "none") != "none"

    def to_json(self) -> dict[str, Any]:
        """JSON data."""
        return {
            "composed": self.composed,
            "target": encode(self.target),
            "unit": encode(self.unit),
            "fixed": dict(self.fixed),
            "until": self.until,
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Job:
        """From JSON data."""
        return Job(
            decode(Target, data["target"], "target"),
            decode(Unit, data["unit"], "unit"),
            data["fixed"],
            data["until"],
            data["composed"],
        )


def plan(level: int, faults: frozenset[str], examples: int, seed: int) -> list[Unit]:
    """The units of a check up to this level (as a number), the static one first.

    Args:
        level: 0 to 4.
        faults: fault packages that runs may use and the world can carry out.
        examples: runs of L3.
        seed: equal seeds explore equally.
    """
    units = [Unit("static", "L0")]
    packages = tuple(sorted(faults))
    if level >= 1:
        units.append(Unit("life-cycle", "L1", packages))
    if level >= 2:
        few = min(PACKAGE_EXAMPLES, max(1, examples // 10))
        units += [
            Unit("explore", "L2", (package,), few, seed=seed * 1000 + index)
            for index, package in enumerate(packages)
        ]
    if level >= 3:
        sizes = [examples // PARTS + (part < examples % PARTS) for part in range(PARTS)]
        units += [
            Unit("explore", "L3", packages, size, seed=seed * 1000 + 500 + part)
            for part, size in enumerate(sizes)
            if size
        ]
    if level >= 4:
        units += [
            Unit("explore", "L4", packages, examples, LONG_MOVES, True, seed * 1000 + 600 + part)
            for part in range(SOAK_PARTS)
        ]
    return units


def merge(found: list[Found], known: dict[Fingerprint, Found], new: Found) -> None:
    """Add a fault to those found; of two scenarios for one fingerprint the shorter one is kept."""
    kept = known.get(new.violation.fingerprint)
    if kept is None:
        known[new.violation.fingerprint] = new
        found.append(new)
        return
    kept.runs += new.runs
    if len(new.scenario.actions) < len(kept.scenario.actions):
        kept.violation, kept.scenario = new.violation, new.scenario
