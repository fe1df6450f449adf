"""What came of a scene, what is held against the target, and the exit code of all scenes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from kvconform.conformance.real.plain import Answer
from kvconform.conformance.verdict import EXIT_FAILED, EXIT_INCONCLUSIVE, EXIT_KILLED, EXIT_OK

Verdict = Literal["pass", "fail", "inconclusive"]

RULES = {
    "unequal": "KVC-501",
    "died": "KVC-010",
    "left": "KVC-402",
    "endless": "KVC-701",
    "refused": "",
    "killed": "",
    "hung": "",
}
"""Kinds of findings, and the rule that `kvconform explain` has on each, where there is one."""


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
        requests: that were made.
        aborted: of these, by the client.
        loaded: prompt tokens that came through the connector, by vLLM's count.
        equal: requests that ended with the answer that they should have.
        failed: requests that ended with an error that the failure policy allows.
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
    ) -> None:
        """Compare how requests ended with how they should have.

        Args:
            ended: see ``child.ended``, by name.
            expected: the answers, by name.
            may_fail: failed loads end requests (policy ``fail``).
        """
        wrong: dict[str, list[str]] = {}
        for name, one in ended.items():
            problem = self._problem(one, expected[name], may_fail)
            if problem:
                wrong.setdefault(problem, []).append(name)
        for problem, names in wrong.items():
            kind, what = problem.split(": ", 1)
            self.findings.append(Finding(kind, what, tuple(names)))

    def _problem(self, one: Mapping[str, Any], expected: Answer, may_fail: bool) -> str:
        tokens, reason = tuple(one["tokens"]), one["reason"]
        if tokens != expected.tokens[: len(tokens)]:
            return "unequal: the answer is not that of a run without connector"
        if reason == "length":
            self.equal += 1
        elif reason == "abort" and one.get("asked_to_abort"):
            self.aborted += 1
        elif reason == "error" and may_fail:
            self.failed += 1
        else:
            return f"refused: the request ended otherwise ({one['error'] or reason or 'no reason'})"
        return ""


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
            "left": o.left,
            "seconds": round(o.seconds, 1),
            "verdict": o.verdict,
            "lacks": o.lacks,
            "findings": [
                {"kind": f.kind, "rule": f.rule, "what": f.what, "requests": list(f.requests)}
                for f in o.findings
            ],
        }
        for o in outcomes
    ]
