"""A known failure: a fault that its owner has taken note of, up to a day."""

from __future__ import annotations

from dataclasses import dataclass

from kvconform.scenario.scenario import Scenario
from kvconform.scenario.violation import Fingerprint


@dataclass(frozen=True, slots=True)
class Known:
    """One entry of a file of known failures (see ``reports/known.py``).

    Attributes:
        fingerprint: the fault.
        reason: why it is put up with, in the owner's words.
        issue: a link to where it is followed up.
        expires: the last day on which it is excused, ``2027-01-31``.
        scenario: what shows it; without actions, of a fault that the class shows without a run.
        file: name of the file that the entry is in.
        expired: that day is over: the fault counts again.
        since: first vLLM release on which it is there; empty: no bound.
        until: last one.
    """

    fingerprint: Fingerprint
    reason: str
    issue: str
    expires: str
    scenario: Scenario
    file: str = "known.toml"
    expired: bool = False
    since: str = ""
    until: str = ""

    @property
    def id(self) -> str:
        """The fingerprint's id."""
        return self.fingerprint.id

    @property
    def name(self) -> str:
        """Rule and id, for messages."""
        return f"{self.fingerprint.rule} {self.id}"
