"""A check as plain data: what the reports are made of (JSON report, schema version 1)."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from typing import Any

from kvconform.conformance.check import Checked
from kvconform.conformance.rules import RULES
from kvconform.conformance.verdict import Finding, RuleVerdict
from kvconform.faults.devices import describe

SCHEMA_VERSION = 1


def catalogue_hash() -> str:
    """Equal hashes mean equal rules."""
    text = "\n".join(f"{r.id} {r.text} {r.provoked} {sorted(r.features)}" for r in RULES)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def run_data(checked: Checked, command: str) -> dict[str, Any]:
    """How the verdict was reached."""
    progress, options = checked.progress, checked.options
    return {
        "level": options.level,
        "seed": options.seed,
        "examples": progress.examples,
        "steps": progress.steps,
        "checkedSteps": progress.checked_steps,
        "seconds": round(progress.seconds, 2),
        "cutShort": checked.cut_short,
        "shapes": dict(sorted(checked.shapes.items())),
        "refused": dict(checked.refused),
        "tolerant": list(checked.target.tolerant),
        "processes": checked.options.processes,
        "command": command,
    }


def rules_data(checked: Checked, paths: Mapping[str, str]) -> list[dict[str, Any]]:
    """The verdict of each rule."""
    return [_rule(verdict, paths) for verdict in checked.verdict.rules]


def report(
    checked: Checked, version: str, command: str, paths: Mapping[str, str]
) -> dict[str, Any]:
    """The JSON report; the order of its keys is fixed.

    Args:
        checked: what was found.
        version: of this tool.
        command: the command line that was given.
        paths: crash file per fingerprint id.
    """
    target = checked.target
    coverage: dict[str, dict[str, dict[str, int]]] = {}
    for cell, count in sorted(checked.coverage.items()):
        fault, state, phase = cell.split("/")
        coverage.setdefault(fault, {}).setdefault(state, {})[phase] = count
    return {
        "schemaVersion": SCHEMA_VERSION,
        "tool": {
            "name": "kvconform",
            "version": version,
            "vllm": checked.vllm,
            "contract": checked.contract.get("hash", ""),
            "resembles": checked.contract.get("resembles", ""),
            "contractChanges": checked.contract.get("changes", 0),
            "catalogue": catalogue_hash(),
        },
        "target": {
            "name": target.name,
            "cls": target.cls,
            "role": target.role,
            "device": describe(target.device),
            "features": dict(sorted(checked.features.items())),
        },
        "run": run_data(checked, command),
        "profiles": [{"name": checked.verdict.profile.name, "result": checked.verdict.result}],
        "rules": rules_data(checked, paths),
        "deaths": [
            {
                "unit": d.unit,
                "how": d.how,
                "detail": d.detail,
                "hook": d.hook,
                "scenario": paths.get(f"death-{i}"),
            }
            for i, d in enumerate(checked.deaths)
        ],
        "known": [
            {
                "fingerprint": s.known.id,
                "rule": s.known.fingerprint.rule,
                "status": s.status,
                "reason": s.known.reason,
                "issue": s.known.issue,
                "expires": s.known.expires,
                "message": s.message,
            }
            for s in checked.stands
        ],
        "coverage": coverage,
        "notMet": [dataclasses.asdict(hole) for hole in checked.holes],
        "selftest": None,
    }


def _rule(verdict: RuleVerdict, paths: Mapping[str, str]) -> dict[str, Any]:
    return {
        "id": verdict.rule.id,
        "title": verdict.rule.title,
        "level": verdict.rule.level,
        "result": verdict.result,
        "reached": verdict.reached,
        "reason": verdict.reason,
        "failures": [_failure(f, paths) for f in verdict.findings],
    }


def _failure(finding: Finding, paths: Mapping[str, str]) -> dict[str, Any]:
    violation = finding.violation
    fingerprint = violation.fingerprint
    return {
        "fingerprint": fingerprint.id,
        "side": fingerprint.side,
        "kind": fingerprint.kind,
        "where": fingerprint.where,
        "message": f"expected {violation.expected}; got {violation.got}",
        "runs": finding.runs,
        "actions": len(finding.scenario.actions),
        "confirmed": finding.confirmed,
        "known": finding.excused,
        "scenario": paths.get(fingerprint.id),
    }
