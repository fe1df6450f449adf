"""Allure result files, read back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def read(folder: Path) -> dict[str, dict[str, Any]]:
    """The results in a folder, by rule id."""
    found = [json.loads(p.read_text("utf-8")) for p in folder.glob("*-result.json")]
    by_rule = {result["name"].split()[0]: result for result in found}
    assert len(by_rule) == len(found), "one result for each rule"
    return by_rule


def labels(result: dict[str, Any]) -> dict[str, str]:
    """The labels that kvconform sets."""
    ours = ("epic", "feature", "story", "severity", "parentSuite", "suite", "owner", "tag")
    return {label["name"]: label["value"] for label in result["labels"] if label["name"] in ours}


def steps(result: dict[str, Any]) -> list[Any]:
    """The names of the steps, each with those below it where there are any."""
    out: list[Any] = []
    for step in result.get("steps", ()):
        below = steps(step)
        out.append([step["name"], below] if below else step["name"])
    return out


def attachments(result: dict[str, Any], folder: Path) -> Iterator[tuple[str, str, str]]:
    """Name, type and text of each attachment."""
    for attachment in result.get("attachments", ()):
        text = (folder / attachment["source"]).read_text("utf-8")
        yield attachment["name"], attachment["type"], text
