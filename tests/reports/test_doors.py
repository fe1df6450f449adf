"""The same check through three doors, command line, suite and class: Allure shows the same."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from tests.reports.results import attachments, labels, read, steps

pytest.importorskip("allure_pytest")

ROOT = Path(__file__).resolve().parents[2]
TARGET = "zoo:full-hit-report"
CLASS = f"""
from kvconform.conformance.suite import ConnectorConformance

class TestMine(ConnectorConformance):
    target = "{TARGET}"
    examples = 8
"""
DOORS = {
    "suite": ["--pyargs", "kvconform.conformance.suite", f"--kvc-target={TARGET}",
              "--kvc-examples=8"],
    "suite -n 2": ["--pyargs", "kvconform.conformance.suite", f"--kvc-target={TARGET}",
                   "--kvc-examples=8", "-n", "2"],
    "class -n 2": ["test_mine.py", "-n", "2"],
}  # fmt: skip


def run(cwd: Path, module: str, *arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr  # a rule failed


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the command line wrote: ``allure/`` and ``junit.xml``."""
    cwd = tmp_path_factory.mktemp("command")
    run(
        cwd, "kvconform", "check", TARGET, "--examples", "8",
        "--allure", "allure", "--junit", "out/junit.xml",
    )  # fmt: skip
    return cwd


def shown(folder: Path) -> dict[str, Any]:
    """What Allure shows of each rule that does not depend on the door."""
    return {
        rule: {
            "name": result["name"],
            "status": result["status"],
            "labels": labels(result),
            "description": result["description"],
            "steps": steps(result),
            "attachments": list(attachments(result, folder)),
        }
        for rule, result in read(folder).items()
        if rule != "PROCESS"  # has a test always, but a result of the command's only when it died
    }


def test_the_command_line_writes_results(command: Path) -> None:
    found = shown(command / "allure")
    assert found["KVC-302"]["status"] == "failed"
    assert found["KVC-302"]["labels"]["epic"] == TARGET
    assert found["KVC-302"]["labels"]["feature"] == "store"
    assert [step.split()[0] for step in found["KVC-302"]["steps"]] == ["arrive", "step", "arrive"]
    assert [name for name, _, _ in found["KVC-302"]["attachments"]] == [
        "table", "scenario", "trace",
    ]  # fmt: skip
    assert found["VLL-001"]["labels"]["tag"] == "vLLM's own"
    root = ET.parse(command / "out" / "junit.xml").getroot()
    failed = [
        test.get("name", "") for test in root.iter("testcase") if test.find("failure") is not None
    ]
    shown_failed = [str(r["name"]) for r in found.values() if r["status"] == "failed"]
    assert sorted(failed) == sorted(shown_failed)
    assert "KVC-302 only finished or waiting requests are received" in failed


@pytest.mark.parametrize("door", DOORS)
def test_every_door_shows_the_same(door: str, command: Path, tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(CLASS)
    run(tmp_path, "pytest", "-p", "no:cacheprovider", "--alluredir", "allure", *DOORS[door])
    assert shown(tmp_path / "allure") == shown(command / "allure")
    for beside in ("environment.properties", "categories.json"):
        assert (tmp_path / "allure" / beside).read_bytes() == (
            command / "allure" / beside
        ).read_bytes()


def test_without_alluredir_there_is_nothing(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(CLASS.replace("examples = 8", 'level = "L0"'))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:allure_pytest"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"test_mine.py"}
