"""The suite for pytest: one test per rule, the same results for every number of workers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def suite(cwd: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            sys.executable, "-m", "pytest",
            "-p", "no:cacheprovider", "--pyargs", "kvconform.conformance.suite", "-rA", *arguments,
        ],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )  # fmt: skip


def results(text: str) -> dict[str, str]:
    found = re.findall(
        r"^(PASSED|FAILED|SKIPPED).*?(test_rule\[KVC-\d+\]|test_process)", text, re.M
    )
    return {name: word for word, name in found}


def test_the_suite_fails_on_the_rule_and_equally_for_every_n(tmp_path: Path) -> None:
    options = ("--kvc-target=zoo:full-hit-report", "--kvc-examples=40")
    one = suite(tmp_path, *options)
    two = suite(tmp_path, *options, "-n", "2")
    assert one.returncode == two.returncode == 1, one.stdout + one.stderr
    assert results(one.stdout)["test_rule[KVC-302]"] == "FAILED"
    assert results(one.stdout)["test_rule[KVC-101]"] == "PASSED"
    assert results(one.stdout) == results(two.stdout)
    assert "reproduce:  kvconform replay" in one.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "the suite needs --kvc-target"),
        (["--kvc-target=nonsense"], "There is no target 'nonsense'"),
        (["--kvc-target=ascend", "--kvc-level=L9"], "There is no level 'L9'"),
    ],
)
def test_bad_input(arguments: list[str], says: str, tmp_path: Path) -> None:
    done = suite(tmp_path, *arguments)
    assert done.returncode != 0
    assert says in done.stdout + done.stderr
