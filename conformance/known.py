"""Known failures: each is replayed before anything is explored, and only what fails is excused."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from kvconform.conformance.pool import Death, Done
from kvconform.conformance.rules import BY_ID
from kvconform.conformance.units import Found, Unit
from kvconform.conformance.verdict import Finding
from kvconform.scenario.known import Known
from kvconform.scenario.releases import within
from kvconform.scenario.target import Target
from kvconform.scenario.violation import Fingerprint, Violation, death_of

Status = Literal["known", "fixed", "expired", "changed", "not replayed"]
"""How an entry stands. ``changed``: its scenario breaks another rule, or the same one otherwise."""


@dataclass(frozen=True, slots=True)
class Stand:
    """How an entry stands.

    Attributes:
        known: the entry.
        status: see there.
        message: the same in a sentence, with what to do.
    """

    known: Known
    status: Status
    message: str


class KnownFailures:
    """The entries that concern a target, and how they stand.

    Attributes:
        stands: one for each entry, once it was looked at.
        deaths: of processes that replays took down, and that are not known.
        new: faults that replays have shown beside those that are excused.
    """

    def __init__(self, entries: Iterable[Known], target: Target) -> None:
        self._target = target.class_name
        self._entries = [k for k in entries if k.fingerprint.target == target.class_name]
        self._found: dict[Fingerprint, Finding] = {}
        self.stands: list[Stand] = []
        self.deaths: list[Death] = []
        self.new: list[Found] = []

    def look(
        self,
        static: Sequence[Found],
        vllm: str,
        play: Callable[[Sequence[Unit]], Iterable[Done]] | None,
    ) -> None:
        """Look how each entry stands.

        Args:
            static: what was found without a run.
            vllm: the installed vLLM's version.
            play: does units; None: nothing is to be run.
        """
        seen = {f.violation.fingerprint: f for f in static}
        to_play = []
        for known in self._entries:
            if not within(vllm, known.since, known.until):
                self._put(known, "not replayed", f"{known.name} is not an entry for vLLM {vllm}.")
            elif BY_ID[known.fingerprint.rule].is_static:
                found = seen.get(known.fingerprint)
                self._judge(known, found.violation if found else None, found)
            elif play is None:
                self._put(known, "not replayed", f"{known.name} needs a run, and nothing was run.")
            else:
                to_play.append(known)
        if play is None:
            return
        units = [
            Unit("play", "known failures", scenario=k.scenario.to_json(), fingerprint=k.fingerprint)
            for k in to_play
        ]
        for done in sorted(play(units), key=lambda d: d.index):
            self._played(to_play[done.index], done)

    def _played(self, known: Known, done: Done) -> None:
        if done.death is not None:
            death = done.death
            fingerprint = death_of(self._target, death.how, death.hook)
            violation = Violation(fingerprint, "every hook returns", f"the target {death.detail}")
            if fingerprint != known.fingerprint or known.expired:
                self.deaths.append(death)
            self._judge(known, violation, None)
        elif done.result is not None and done.result.refused:
            said = next(iter(done.result.refused))
            self._put(known, "not replayed", f"{known.name} cannot be replayed here: {said}")
        elif done.result is not None:
            found = done.result.found[0] if done.result.found else None
            self._judge(known, found.violation if found else None, found)

    def _judge(self, known: Known, violation: Violation | None, found: Found | None) -> None:
        if violation is None:
            self._put(
                known, "fixed",
                f"{known.name} is fixed: its scenario breaks no rule any more. Remove this entry "
                f"from {known.file}.",
            )  # fmt: skip
            return
        same = violation.fingerprint == known.fingerprint
        if not same:
            self._put(
                known, "changed",
                f"{known.name} is not what its scenario shows any more, but "
                f"{violation.fingerprint}: remove this entry from {known.file}, or make one of "
                "that.",
            )  # fmt: skip
        elif known.expired:
            self._put(
                known, "expired",
                f"{known.name} was known until {known.expires}, and counts again: mend it, or give "
                f"its entry in {known.file} another day ({known.issue}).",
            )  # fmt: skip
        else:
            self._put(known, "known", f"{known.name} is known until {known.expires}.")
            self._found[known.fingerprint] = Finding(
                violation, known.scenario, found.trace() if found else None, 0,
                len(known.scenario.actions), known=known,
            )  # fmt: skip
            return
        if found is not None and not BY_ID[found.violation.fingerprint.rule].is_static:
            found.runs = 0  # of the exploration
            self.new.append(found)

    def _put(self, known: Known, status: Status, message: str) -> None:
        self.stands.append(Stand(known, status, message))

    def entry(self, fingerprint: Fingerprint) -> Known | None:
        """The entry of a fault, if there is one that is expired or still fails."""
        return next(
            (s.known for s in self.stands
             if s.known.fingerprint == fingerprint and s.status in ("known", "expired")), None,
        )  # fmt: skip

    def excuses(self, fingerprint: Fingerprint, runs: int = 1) -> bool:
        """Whether a fault is excused; if so, the runs that showed it are counted."""
        finding = self._found.get(fingerprint)
        if finding is None:
            return False
        finding.runs += runs
        return True

    def excuses_death(self, death: Death) -> bool:
        """The same of a process that the target took down."""
        return self.excuses(death_of(self._target, death.how, death.hook))

    @property
    def findings(self) -> list[Finding]:
        """What is excused."""
        return list(self._found.values())
