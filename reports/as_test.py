"""A crash as a pytest file of plain calls."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from kvconform.reports.crash import Crash

_HEAD = '''"""{title}

Found by kvconform ({id}). Run it with pytest; it fails for as long as the fault is there.
"""

from kvconform.conformance.run import Run
from kvconform.scenario.actions import {actions}
{prompt}from kvconform.scenario.shape import Shape
from kvconform.scenario.target import Target

TARGET = {target}


def test_{name}() -> None:
    with Run(TARGET, {shape}) as run:
'''


def as_test(crash: Crash) -> str:
    """Python source of the test."""
    scenario = crash.scenario
    fingerprint = crash.violation.fingerprint
    kinds = sorted({type(a).__name__ for a in scenario.actions}) or ["Action"]
    head = _HEAD.format(
        title=f"{fingerprint.rule}: {fingerprint.kind} ({fingerprint.target}).",
        id=crash.id,
        actions=", ".join(kinds),
        prompt="from kvconform.scenario.prompt import Prompt\n" if "Arrive" in kinds else "",
        target=_call(crash.target),
        name=f"{fingerprint.rule.lower().replace('-', '_')}_{crash.id}",
        shape=_call(scenario.shape),
    )
    names = list(crash.resolved) + [""] * len(scenario.actions)
    lines = []
    for action, name in zip(scenario.actions, names, strict=False):
        call = f"        run.do({_call(action)})"
        lines.append(f"{call}  # {name}" if name else call)
    lines.append("        run.verify()")
    return head + "\n".join(lines) + "\n"


def _call(value: Any) -> str:
    """A dataclass as the call that builds it; defaults are left out."""
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return repr(dict(value)) if isinstance(value, Mapping) else repr(value)
    parts = []
    for field in dataclasses.fields(value):
        item = getattr(value, field.name)
        default = (
            field.default_factory()
            if field.default_factory is not dataclasses.MISSING
            else field.default
        )
        if item != default:
            parts.append(f"{field.name}={_call(item)}")
    return f"{type(value).__name__}({', '.join(parts)})"
