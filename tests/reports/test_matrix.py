"""The matrix: rules and releases in one table, and what decides its exit code."""

from __future__ import annotations

import json
import os
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from kvconform.cli.main import main
from kvconform.reports.matrix import table


def rule(name: str, result: str) -> dict[str, str]:
    return {"id": name, "title": f"title of {name}", "result": result}


def column(
    vllm: str, code: int, *rules: dict[str, str], claimed: bool = True, message: str = ""
) -> dict[str, Any]:
    return {
        "vllm": vllm,
        "claimed": claimed,
        "exit": code,
        "message": message,
        "rules": list(rules),
    }


def test_rules_down_releases_across() -> None:
    text = table(
        "mine",
        [
            column("0.13.0", 3, claimed=False, message="cannot be imported"),
            column("0.18.0", 1, rule("KVC-302", "fail"), rule("VLL-702", "fail")),
            column("0.32.0", 2, rule("KVC-302", "vacuous"), rule("VLL-702", "pass")),
        ],
    )
    lines = [line.split() for line in text.splitlines()]
    assert ["(0.13.0)", "0.18.0", "0.32.0"] in lines
    assert ["KVC-302", "FAIL", "never", "title", "of", "KVC-302"] in lines
    assert ["VLL-702", "vLLM", "ok", "title", "of", "VLL-702"] in lines
    assert ["cannot", "FAIL", "open"] in lines
    assert "  0.13.0: cannot be imported" in text.splitlines()


START = """#!{python}
import json, sys
version, codes = sys.argv[2], {codes}
if codes[version] == 3:
    print("first line", file=sys.stderr)
    print("kvconform: it cannot", file=sys.stderr)
else:
    with open(sys.argv[sys.argv.index("--json") + 1], "w") as file:
        json.dump({{"rules": [], "tool": {{"vllm": version}}}}, file)
sys.exit(codes[version])
"""


@pytest.mark.parametrize(
    ("codes", "expected"),
    [
        ({"0.17.0": 1, "0.18.0": 0, "0.33.0": 0}, 0),  # what is not claimed does not count
        ({"0.17.0": 0, "0.18.0": 0, "0.33.0": 2}, 2),
        ({"0.17.0": 0, "0.18.0": 1, "0.33.0": 3}, 1),
        ({"0.17.0": 0, "0.18.0": 3, "0.33.0": 2}, 3),
        ({"0.17.0": 0, "0.18.0": 5, "0.33.0": 1}, 5),
    ],
)
def test_the_worst_of_the_claimed_decides(
    codes: dict[str, int], expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = tmp_path / "start"
    start.write_text(START.format(python=sys.executable, codes=codes))
    start.chmod(start.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("KVC_START", str(start))
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "matrix.json"
    assert main(["matrix", "ascend", "--versions", ",".join(codes), "--json", str(out)]) == expected
    columns = json.loads(out.read_text())["matrix"]["ascend"]
    assert {c["vllm"]: c["exit"] for c in columns} == codes
    assert [c["claimed"] for c in columns] == [False, True, True]
    assert all(bool(c["message"]) is (c["exit"] == 3) for c in columns)


@pytest.mark.parametrize(
    ("arguments", "started", "said"),
    [
        (["matrix"], True, "either targets or --all"),
        (["matrix", "ascend", "--all"], True, "either targets or --all"),
        (["matrix", "nonsense"], True, "There is no target 'nonsense'"),
        (["matrix", "ascend", "--versions", "newest"], True, "releases such as 0.18.0"),
        (["matrix", "ascend", "--versions", "0.18.0"], False, "with ./kvc only"),
    ],
)
def test_bad_input(
    arguments: list[str], started: bool, said: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("KVC_START", raising=False)
    if started:
        monkeypatch.setenv("KVC_START", os.devnull)
    assert main(arguments) == 3
    captured = capsys.readouterr()
    assert said in captured.err
    assert len(captured.err.splitlines()) == 1
    assert not captured.out


def test_the_installed_one_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("KVC_START", raising=False)
    monkeypatch.delenv("KVC_VLLM", raising=False)
    assert main(["matrix", "ascend", "--level", "L0"]) == 0
    assert "KVC-001  ok" in capsys.readouterr().out
