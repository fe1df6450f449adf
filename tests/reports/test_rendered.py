"""The results as Allure 2 and Allure 3 show them, offline, in a browser without a window.

KVC_ALLURE2, KVC_ALLURE3 and KVC_CHROMIUM name the programs; otherwise PATH is searched. Both
Allures are called ``allure``, so each is asked for its version.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.reports import made

pytest.importorskip("allure_commons")
from kvconform.reports import allure

pytestmark = pytest.mark.slow

CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
# Per major version: what it needs, how it is called, and how its page holds results and opens one.
ALLURES = {
    2: (("java",), ("generate",), r"d\('data/test-cases/(\w+)\.json','([^']*)'", "#testresult/"),
    3: (("node",), ("awesome",), r'd\("data/test-results/(\w+)\.json","([^"]*)"', "#"),
}


def program(variable: str, *names: str) -> str:
    """The program that a variable names, or the first of these on PATH; skips without one."""
    named = os.environ.get(variable)
    if named:
        assert os.access(named, os.X_OK), f"{variable}={named} is no program"
        return named
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        pytest.skip(f"needs {names[0]}: set {variable}, or put it on PATH")
    return found


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


TRIES = 4
"""How often a page is asked for: a busy machine's Chromium hands it out before it is drawn."""


def rendered(chromium: str, url: str, profile: Path, until: str) -> str:
    """The page's document after its scripts ran, without the scripts; it should show ``until``."""
    for attempt in range(TRIES):
        page = run(
            chromium, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic",
            "--no-first-run", "--disable-background-networking", "--disable-component-update",
            "--disable-sync", f"--user-data-dir={profile / str(attempt)}",
            "--virtual-time-budget=60000", "--dump-dom", url,
        )  # fmt: skip
        shown = re.sub(r"<(script|style)\b.*?</\1>", "", page, flags=re.DOTALL)
        if until in shown:
            break
    return shown


def show(major: int, results: Path, rule: str, folder: Path) -> tuple[set[str], str]:
    """All that Allure names, and its page on one rule."""
    needs, arguments, pattern, route = ALLURES[major]
    command = program(f"KVC_ALLURE{major}", "allure")
    for name in needs:
        if shutil.which(name) is None:
            pytest.skip(f"Allure {major} needs {name} on PATH")
    version = run(command, "--version").strip()
    if not version.startswith(f"{major}."):
        pytest.skip(f"{command} is Allure {version}: name Allure {major} by KVC_ALLURE{major}")
    chromium = program("KVC_CHROMIUM", *CHROMIUM)
    report = folder / "report"
    run(command, *arguments, str(results), "--single-file", "-o", str(report))
    page = report / "index.html"
    names = {
        json.loads(base64.b64decode(data))["name"].split()[0]: uid
        for uid, data in re.findall(pattern, page.read_text("utf-8"))
    }
    url = f"{page.as_uri()}{route}{names[rule]}"
    return set(names), rendered(chromium, url, folder / "profile", until="kvconform replay")


@pytest.mark.parametrize("major", ALLURES)
def test_a_finding_is_shown(major: int, tmp_path: Path) -> None:
    allure.write(made.everything(), tmp_path / "results")
    names, shown = show(major, tmp_path / "results", "KVC-302", tmp_path)
    assert names == set(made.STATUSES)
    for words in ("KVC-302 title of KVC-302", "expected: nothing of the kind", *made.STEPS):
        assert words in shown
    assert "reproduce: kvconform replay .kvconform/KVC-302-" in shown
    assert "&lt;b id=" in shown, "markup is shown"
    assert '<b id="raw"' not in shown, "and nowhere obeyed"


@pytest.fixture(scope="module")
def of_the_suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of the suite on a wrong connector."""
    folder = tmp_path_factory.mktemp("suite")
    done = subprocess.run(
        [
            sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--pyargs",
            "kvconform.conformance.suite", "--kvc-target=zoo:full-hit-report", "--kvc-level=L1",
            "-n", "2", "--alluredir", "results",
        ],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    return folder / "results"


@pytest.mark.parametrize("major", ALLURES)
def test_the_suites_results_are_shown(major: int, of_the_suite: Path, tmp_path: Path) -> None:
    names, shown = show(major, of_the_suite, "KVC-302", tmp_path)
    assert {"KVC-302", "VLL-201", "KVC-801"} <= names
    assert "only finished or waiting requests are received" in shown
    assert "kvconform replay .kvconform/KVC-302-" in shown
    assert "arrive r0 prompt 0:16" in shown
