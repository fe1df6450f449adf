"""Known failures through the command line, the suite and a class: one entry, the same verdict."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.resources import files
from pathlib import Path
from xml.etree import ElementTree as ET

import jsonschema
import pytest

ROOT = Path(__file__).resolve().parents[2]
TARGET = "zoo:full-hit-report"
ISSUE = "https://example.org/issues/7"
CHECK = ("check", TARGET, "--level", "L1")
CLASS = f"""
from kvconform.conformance.suite import ConnectorConformance

class TestMine(ConnectorConformance):
    target = "{TARGET}"
    level = "L1"
    known = "known.toml"
"""


def run(cwd: Path, module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an entry for each fault that the check finds."""
    folder = tmp_path_factory.mktemp("gate")
    assert run(folder, "kvconform", *CHECK).returncode == 1
    crashes = sorted((folder / ".kvconform").glob("KVC-*.json"))
    assert crashes
    for crash in crashes:
        done = run(
            folder, "kvconform", "known", str(crash), "--reason", "it is known",
            "--issue", ISSUE, "--expires", "2999-12-31",
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert "is known until 2999-12-31" in done.stdout
        crash.unlink()  # the entry stands alone
    return folder


def expired(folder: Path, name: str) -> str:
    path = folder / name
    text = (folder / "known.toml").read_text()
    path.write_text(text.replace("2999-12-31", "2020-12-31"))
    return name


def test_the_command_excuses_what_is_known_and_reports_it(gate: Path) -> None:
    done = run(
        gate, "kvconform", *CHECK, "--known", "known.toml", "--json", "r.json", "--junit", "j.xml",
    )  # fmt: skip
    assert done.returncode in (0, 2), done.stdout  # at L1 some rules are not reached
    assert "KNOWN  KVC-302" in done.stdout
    assert f"issue      {ISSUE}" in done.stdout
    report = json.loads((gate / "r.json").read_text())
    schema = json.loads(files("kvconform.reports").joinpath("schema.json").read_text())
    jsonschema.validate(report, schema)
    assert list(report) == schema["required"]
    assert {entry["status"] for entry in report["known"]} == {"known"}
    results = {rule["id"]: rule for rule in report["rules"]}
    assert results["KVC-302"]["result"] == "known_fail"
    assert all(f["known"] for f in results["KVC-302"]["failures"])
    assert "fail" not in {r["result"] for r in report["rules"] if r["id"].startswith("KVC")}
    case = next(
        c for c in ET.parse(gate / "j.xml").getroot().iter("testcase")
        if "KVC-302" in c.get("name", "")
    )  # fmt: skip
    skipped = case.find("skipped")
    assert skipped is not None
    assert ISSUE in skipped.get("message", "")


def test_the_command_fails_once_the_day_is_over(gate: Path) -> None:
    done = run(gate, "kvconform", *CHECK, "--known", expired(gate, "old.toml"))
    assert done.returncode == 1
    assert "notice: KVC-302" in done.stdout
    assert "counts again: mend it, or give its entry in old.toml another day" in done.stdout


def test_the_command_asks_to_remove_what_is_fixed(gate: Path) -> None:
    crash = next((gate / "known").glob("KVC-302-*.json"))
    data = json.loads(crash.read_text())
    data["scenario"]["actions"] = data["scenario"]["actions"][:1]
    (gate / "known" / "mended.json").write_text(json.dumps(data))
    (gate / "mended.toml").write_text(
        f'[[known]]\nfingerprint = "{data["id"]}"\nreason = "it was"\nissue = "{ISSUE}"\n'
        'expires = 2999-12-31\nscenario = "known/mended.json"\n'
    )
    done = run(gate, "kvconform", *CHECK, "--known", "mended.toml")
    assert "breaks no rule any more. Remove this entry from mended.toml." in done.stdout
    assert done.returncode == 1  # it is still there elsewhere, and not excused


def test_the_suite_and_a_class_skip_what_is_known(gate: Path) -> None:
    (gate / "test_mine.py").write_text(CLASS)
    doors = (
        ("--pyargs", "kvconform.conformance.suite", f"--kvc-target={TARGET}", "--kvc-level=L1",
         "--kvc-known=known.toml"),
        ("test_mine.py",),
    )  # fmt: skip
    for door in doors:
        done = run(gate, "pytest", "-p", "no:cacheprovider", "-rA", *door)
        assert "[KVC-302]" not in "".join(re.findall("^FAILED.*", done.stdout, re.M)), done.stdout
        assert f"known until 2999-12-31: it is known ({ISSUE})" in done.stdout
        assert "KnownFailureWarning" not in done.stdout


def test_pytest_warns_of_what_has_expired_and_wants_a_file_that_is_there(gate: Path) -> None:
    (gate / "test_mine.py").write_text(CLASS.replace("known.toml", expired(gate, "late.toml")))
    done = run(gate, "pytest", "-p", "no:cacheprovider", "test_mine.py")
    assert done.returncode == 1
    assert "KnownFailureWarning: KVC-302" in done.stdout
    (gate / "test_mine.py").write_text(CLASS.replace("known.toml", "gone.toml"))
    done = run(gate, "pytest", "-p", "no:cacheprovider", "test_mine.py")
    assert "Cannot read the file of known failures gone.toml" in done.stdout
    assert "Traceback" not in done.stdout
