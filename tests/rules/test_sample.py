"""The sample has something for each check to notice, by each side."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, get_args

import pytest

from kvconform.cli.main import main
from kvconform.conformance.checks import ALL
from kvconform.conformance.invariants import BY_ID as INVARIANT
from kvconform.conformance.rules import RULES
from kvconform.connectors.zoo.catalogue import BY_NAME, MUTANTS
from kvconform.connectors.zoo.mutant import Half, Mutant
from kvconform.connectors.zoo.sample import SAMPLE

ROOT = Path(__file__).resolve().parents[2]
CHOSEN = [BY_NAME[name] for name in SAMPLE]
WITHOUT = {"VLL-101", *(rule.id for rule in RULES if "device" in rule.features)}
"""Rules that no member of the zoo breaks, see tests/reports/test_catalogue.py, and those of
devices, which are not everywhere; see tests/device."""


def watched(mutant: Mutant) -> set[str]:
    """The rules that watch what it gets wrong."""
    return {*mutant.rules}.union(*(INVARIANT[i].rules for i in mutant.breaks))


def test_it_is_small_and_sorted() -> None:
    assert len(SAMPLE) == 30
    assert list(SAMPLE) == sorted(set(SAMPLE))


def test_every_check_has_something_to_notice() -> None:
    seen = set().union(*map(watched, CHOSEN))
    lacking = {
        check.rule: [m.name for m in MUTANTS if check.rule in watched(m)]
        for check in ALL
        if check.rule not in seen | WITHOUT
    }
    assert not lacking, f"add one of these to connectors/zoo/sample.py for each: {lacking}"


def test_every_family_and_side_is_there() -> None:
    families = {rule[:5] for m in CHOSEN for rule in watched(m)}
    assert families == {rule.id[:5] for rule in RULES}
    assert {m.side for m in CHOSEN} == set(get_args(Half))


def test_the_sample_and_names_exclude_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["selftest", "--sample", "--mutant", "wrong-block"]) == 3
    assert "either --mutant or --sample" in capsys.readouterr().err


def test_a_file_of_longer_hunts_is_not_gone_on_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "hunts.json"
    path.write_text('{"seed": 1, "hunts": []}')
    assert main(["selftest", "--sample", "--json", str(path)]) == 3
    assert "is of hunts of 60 s" in capsys.readouterr().err


NAMES = ["answers-bool", "two-signals", "leak-on-abort", "double-completion", "sent-too-soon"]


def begin(path: Path) -> subprocess.Popen[str]:
    """A selftest of a few; it goes on for a minute with the right connector."""
    return subprocess.Popen(
        [sys.executable, "-m", "kvconform", "selftest", "--mutant", ",".join(NAMES),
         "--json", path],
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "0"},
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def stored(path: Path) -> dict[str, Any]:
    hunts = json.loads(path.read_text())["hunts"] if path.exists() else []
    return {hunt["name"]: hunt for hunt in hunts}


def kill_when(running: subprocess.Popen[str], path: Path, count: int) -> tuple[dict[str, Any], str]:
    """Kill it, without a warning, once so many are stored; what is stored, and what it had said."""
    end = time.monotonic() + 240
    while len(stored(path)) < count:
        assert running.poll() is None, running.communicate()[1]
        assert time.monotonic() < end, "nothing was stored"
        time.sleep(0.02)
    running.kill()
    said = running.communicate()[1]
    return stored(path), said


def test_who_is_killed_goes_on_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "hunts.json"
    first, _ = kill_when(begin(path), path, 2)
    assert all(hunt["killed"] and hunt["scenario"] for hunt in first.values())
    last, said = kill_when(begin(path), path, len(NAMES))
    assert set(last) == set(NAMES)
    for name, hunt in first.items():
        assert last[name] == hunt  # to the second
        assert name not in said  # and it was not hunted again
