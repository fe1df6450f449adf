"""What came of a scene, what is held against the target, and the exit code of all scenes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from kvconform.conformance.real.plain import Answer
from kvconform.conformance.verdict import EXIT_FAILED, EXIT_INCONCLUSIVE, EXIT_KILLED, EXIT_OK

Verdict = Literal["pass", "fail", "inconclusive"]

RULES = {
    "killed": "",
    "hung": "",
    "died": "KVC-010",
    "unequal": "KVC-501",
    "left": "KVC-402",
    "endless": "KVC-701",
    "refused": "",
    "lost": "",
}
"""Kinds of findings, causes before what follows from them, and the rule of each, if any."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is held against the target.

    Attributes:
        kind: one of ``RULES``.
        what: a sentence.
        requests: those that it happened to, by name.
    """

    kind: str
    what: str
    requests: tuple[str, ...] = ()

    @property
    def rule(self) -> str:
        """See ``RULES``."""
        return RULES[self.kind]


@dataclass(slots=True)
class Outcome:
    """One scene, played.

    Attributes:
        scene: its name.
        says: what was done.
        requests: that were judged.
        aborted: of these, by the client.
        loaded: prompt tokens that came through the connector, by vLLM's count.
        equal: requests that ended with the answer that they should have.
        failed: requests that ended with an error that the failure policy allows.
        lost: requests whose engine the scene has killed.
        left: blocks that stayed behind, over all engines.
        seconds: that it took.
        findings: see there.
        lacks: why nothing follows from it although nothing was found; "": something does.
    """

    scene: str
    says: str
    requests: int = 0
    aborted: int = 0
    loaded: int = 0
    equal: int = 0
    failed: int = 0
    lost: int = 0
    left: int = 0
    seconds: float = 0.0
    findings: list[Finding] = field(default_factory=list)
    lacks: str = ""

    @property
    def verdict(self) -> Verdict:
        """A scene passes only when it was shown that it could have failed."""
        if self.findings:
            return "fail"
        return "inconclusive" if self.lacks else "pass"

    def judge(
        self,
        ended: Mapping[str, Mapping[str, Any]],
        expected: Mapping[str, Answer],
        *,
        may_fail: bool = False,
        counts: bool = True,
    ) -> None:
        """Compare how requests ended with how they should have.

        Args:
            ended: see ``child.ended``, by name.
            expected: the answers, by name.
            may_fail: failed loads end requests (policy ``fail``).
            counts: they are at their end, not on their way from one engine to another.
        """
        faults: dict[tuple[str, str], list[str]] = {}
        ends: Counter[str] = Counter()
        for name, one in ended.items():
            tokens, reason = tuple(one["tokens"]), one["reason"]
            right = expected[name].tokens
            if tokens[: len(right)] != right[: len(tokens)]:  # one of them may be longer
                fault = ("unequal", "the answer is not that of a run without connector")
                faults.setdefault(fault, []).append(name)
            elif (
                reason == "length"
                or (reason == "abort" and one["asked_to_abort"])
                or (reason == "error" and may_fail)
            ):
                ends[reason] += 1
            else:
                fault = ("refused", f"it ended with: {one['error'] or reason or 'no reason'}")
                faults.setdefault(fault, []).append(name)
        for (kind, what), names in faults.items():
            self.findings.append(Finding(kind, what, tuple(names)))
        if counts:
            self.equal += ends["length"]
            self.aborted += ends["abort"]
            self.failed += ends["error"]


def exit_code(outcomes: Sequence[Outcome]) -> int:
    """The exit code of a run: as of a check."""
    kinds = {finding.kind for outcome in outcomes for finding in outcome.findings}
    if kinds & {"killed", "hung"}:
        return EXIT_KILLED
    if kinds:
        return EXIT_FAILED
    if not outcomes or any(outcome.verdict != "pass" for outcome in outcomes):
        return EXIT_INCONCLUSIVE
    return EXIT_OK


def as_data(outcomes: Iterable[Outcome]) -> list[dict[str, Any]]:
    """For the table and the JSON file."""
    return [
        {
            "scene": o.scene,
            "says": o.says,
            "requests": o.requests,
            "aborted": o.aborted,
            "loaded": o.loaded,
            "equal": o.equal,
            "failed": o.failed,
            "lost": o.lost,
            "left": o.left,
            "seconds": round(o.seconds, 1),
            "verdict": o.verdict,
            "lacks": o.lacks,
            "findings": [
                {"kind": f.kind, "rule": f.rule, "what": f.what, "requests": list(f.requests)}
                for f in sorted(o.findings, key=lambda f: list(RULES).index(f.kind))
            ],
        }
        for o in outcomes
    ]
