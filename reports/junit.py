"""JUnit XML: a suite for the profile, a test case for each rule, as Jenkins and GitLab read it."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from kvconform.reports.outcome import Case, cases, legible
from kvconform.scenario.errors import UsageError

_TAG = {"failed": "failure", "broken": "error", "skipped": "skipped"}


def prepare(path: Path) -> None:
    """Make sure that the file can be written, and make its folder.

    Raises:
        UsageError: it cannot.
    """
    if path.is_dir():
        raise UsageError(f"Cannot write the JUnit file {path}: it is a folder.")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"Cannot make the folder {path.parent} for the JUnit file: {error.strerror}."
        ) from None
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UsageError(f"Cannot write the JUnit file {path}: permission denied.")


def write(check: Mapping[str, Any], path: Path) -> None:
    """Write a check (see ``outcome``) as JUnit XML.

    Raises:
        UsageError: the file cannot be written.
    """
    try:
        path.write_bytes(render(check))
    except OSError as error:
        raise UsageError(f"Cannot write the JUnit file {path}: {error.strerror}.") from None


def render(check: Mapping[str, Any]) -> bytes:
    """A check as JUnit XML."""
    found = cases(check)
    status = Counter(case.status for case in found)
    counts = {
        "tests": str(len(found)),
        "failures": str(status["failed"]),
        "errors": str(status["broken"]),
    }
    seconds = {"time": f"{check['seconds']:.3f}"}
    root = ET.Element("testsuites", {"name": "kvconform", **counts, **seconds})
    skipped = {"skipped": str(status["skipped"])}
    suite = ET.SubElement(
        root, "testsuite", {"name": check["profile"], **counts, **skipped, **seconds}
    )
    properties = ET.SubElement(suite, "properties")
    # Not the target's extra config, which may hold what is secret.
    run = {name: check["options"][name] for name in ("level", "seed", "examples")}
    if tolerant := check["options"].get("tolerant"):
        run["tolerant"] = ", ".join(tolerant)
    for name, value in {"target": check["target"], "vLLM": check["vllm"], **run}.items():
        ET.SubElement(properties, "property", {"name": name, "value": legible(str(value))})
    for case in found:
        for note in case.notes:
            ET.SubElement(properties, "property", {"name": "known failure", "value": note})
    for case in found:
        _case(suite, case, f"{legible(check['target'])}.{check['profile']}")
    ET.indent(root, " ")
    return ET.tostring(root, encoding="utf-8", xml_declaration=True) + b"\n"


def _case(suite: ET.Element, case: Case, classname: str) -> None:
    # The check is one run for all rules: no rule has a time of its own.
    entry = ET.SubElement(
        suite, "testcase", {"classname": classname, "name": case.name, "time": "0"}
    )
    if case.status != "passed":
        gist = " · ".join(case.gist.splitlines())
        why = ET.SubElement(entry, _TAG[case.status], {"message": gist, "type": case.id})
        why.text = case.text
