"""Crash files: one JSON file per fault, with the scenario that shows it.

It holds the scenario, not any tool's internal blob: it replays across versions of Hypothesis, of
vLLM and of this tool, and against another vendor's connector.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvconform.scenario.codec import decode, encode
from kvconform.scenario.errors import UsageError
from kvconform.scenario.scenario import Scenario
from kvconform.scenario.target import Target
from kvconform.scenario.trace import Event, Kind
from kvconform.scenario.violation import Violation, death_of

FORMAT = 1
FOLDER = ".kvconform"


@dataclass(frozen=True, slots=True)
class Crash:
    """A stored fault.

    Attributes:
        target: the connector that showed it.
        violation: what happened.
        scenario: what to do to see it again.
        resolved: per action, what its selector meant then; for readers.
        versions: of what it was seen with.
    """

    target: Target
    violation: Violation
    scenario: Scenario
    resolved: tuple[str, ...] = ()
    versions: Mapping[str, str] | None = None

    @property
    def id(self) -> str:
        """The fingerprint's id, and the file's name."""
        return self.violation.fingerprint.id

    def to_json(self) -> dict[str, Any]:
        """JSON data."""
        return {
            "format": FORMAT,
            "id": self.id,
            "rule": self.violation.fingerprint.rule,
            "target": encode(self.target),
            "violation": self.violation.to_json(),
            "scenario": self.scenario.to_json(),
            "resolved": list(self.resolved),
            "hash_seed": 0,
            "versions": dict(self.versions or {}),
        }


def resolved(events: Iterable[Event] | None) -> tuple[str, ...]:
    """Per action of a run, what its selector meant."""
    return tuple(e.data["resolved"] for e in events or () if e.kind is Kind.ACTION)


def make_folder(folder: Path, what: str = "crash files") -> None:
    """Make a folder, before the work whose results it is for.

    Raises:
        UsageError: it cannot be made or written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"Cannot make the folder {folder} for {what}: {error.strerror}.") from None
    if not os.access(folder, os.W_OK):
        raise UsageError(f"The folder {folder} for {what} cannot be written to.")


def write(crash: Crash, folder: Path) -> Path:
    """Write a crash file; returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{crash.violation.fingerprint.rule}-{crash.id}.json"
    path.write_text(json.dumps(crash.to_json(), indent=1) + "\n", encoding="utf-8")
    return path


def write_death(
    target: Target, scenario: dict[str, Any], how: str, hook: str, folder: Path
) -> Path:
    """Write the crash file of a run that took its process down in ``hook``; returns its path."""
    fingerprint = death_of(target.class_name, how, hook)
    violation = Violation(fingerprint, "every hook returns", f"the target {fingerprint.kind}")
    return write(Crash(target, violation, Scenario.from_json(scenario)), folder)


def read(path: Path) -> Crash:
    """Read a crash file.

    Raises:
        UsageError: it is not there, or not one.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"Cannot read {path}: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not a text file, so it is not a crash file.") from None
    except json.JSONDecodeError as error:
        raise UsageError(
            f"{path} is not JSON: {error.msg} in line {error.lineno}, column {error.colno}."
        ) from None
    if not isinstance(data, Mapping) or data.get("format") != FORMAT:
        raise UsageError(
            f"{path} is not a crash file of format {FORMAT}: it has no field 'format' with that "
            "number."
        )
    for field in ("target", "violation", "scenario"):
        if field not in data:
            raise UsageError(f"{path}: the field {field!r} is missing.")
    return Crash(
        decode(Target, data["target"], f"{path}: target"),
        Violation.from_json(data["violation"], f"{path}: violation"),
        Scenario.from_json(data["scenario"], f"{path}: scenario"),
        tuple(map(str, data.get("resolved", ()))),
        data.get("versions"),
    )


def locate(name: str, folder: Path = Path(FOLDER)) -> Path:
    """The file behind a path, or behind the id of a crash file in ``folder``.

    Raises:
        UsageError: there is none, or several.
    """
    path = Path(name)
    if not path.exists() and (folder / path.with_suffix(".json").name).exists():
        return folder / path.with_suffix(".json").name
    if path.exists() or path.suffix == ".json" or "/" in name:
        return path
    found = sorted(folder.glob(f"**/*-{name}*.json"))
    if len(found) == 1:
        return found[0]
    if not found:
        raise UsageError(f"There is no crash file {name!r}, neither as a path nor in {folder}/.")
    raise UsageError(f"{name!r} fits several crash files in {folder}/: give the path of one.")
