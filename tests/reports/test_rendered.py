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


def rendered(chromium: str, url: str, profile: Path) -> str:
    """The page's document after its scripts ran, without the scripts."""
    page = run(
        chromium, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync",
        f"--user-data-dir={profile}", "--virtual-time-budget=8000", "--dump-dom", url,
    )  # fmt: skip
    return re.sub(r"<(script|style)\b.*?</\1>", "", page, flags=re.DOTALL)


@pytest.mark.parametrize("major", ALLURES)
def test_a_finding_is_shown(major: int, tmp_path: Path) -> None:
    needs, arguments, pattern, route = ALLURES[major]
    command = program(f"KVC_ALLURE{major}", "allure")
    for name in needs:
        if shutil.which(name) is None:
            pytest.skip(f"Allure {major} needs {name} on PATH")
    version = run(command, "--version").strip()
    if not version.startswith(f"{major}."):
        pytest.skip(f"{command} is Allure {version}: name Allure {major} by KVC_ALLURE{major}")
    chromium = program("KVC_CHROMIUM", *CHROMIUM)

    allure.write(made.everything(), tmp_path / "results")
    report = tmp_path / "report"
    run(command, *arguments, str(tmp_path / "results"), "--single-file", "-o", str(report))
    page = report / "index.html"
    names = {
        json.loads(base64.b64decode(data))["name"].split()[0]: uid
        for uid, data in re.findall(pattern, page.read_text("utf-8"))
    }
    assert names.keys() == made.STATUSES.keys()

    shown = rendered(chromium, f"{page.as_uri()}{route}{names['KVC-302']}", tmp_path / "profile")
    for words in ("KVC-302 title of KVC-302", "expected: nothing of the kind", *made.STEPS):
        assert words in shown
    assert "reproduce: kvconform replay .kvconform/KVC-302-" in shown
    assert "&lt;b id=" in shown, "markup is shown"
    assert '<b id="raw"' not in shown, "and nowhere obeyed"
