"""The soak goes on where it was, says who is accused, and mixes nothing up."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import soak


def test_it_goes_on_where_it_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "soak.json"
    more = ["--level", "L1", "--report", str(tmp_path), "--json", str(path)]
    assert soak.main(["ascend", "--steps", "1", *more]) == 0
    (first,) = json.loads(path.read_text())["checks"]
    assert first["checked"] > 1
    assert first["accused"] == []
    assert f"{first['checked']} checked steps in 1 checks" in capsys.readouterr().out
    assert soak.main(["ascend", "--steps", str(first["checked"] + 1), *more]) == 0
    again, second = json.loads(path.read_text())["checks"]
    assert again == first
    assert (first["seed"], second["seed"]) == (1, 2)
    out = capsys.readouterr().out
    assert "seed 1:" not in out  # it was not checked again
    assert "2 checks" in out

    assert soak.main(["ascend", "--examples", "7", *more]) == 3
    assert "give another file" in capsys.readouterr().err
    path.write_text("{}")
    assert soak.main(["ascend", *more]) == 3
    assert "is not the file of a soak" in capsys.readouterr().err


def test_who_is_accused_ends_it_with_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = ["--steps", "1", "--level", "L1", "--report", str(tmp_path)]
    assert soak.main(["zoo:wrong-block", *more]) == 1
    assert "ACCUSED  KVC-501" in capsys.readouterr().out


def test_rules_are_reached_by_one_check_or_another() -> None:
    checks = [
        {"vllm": "0.32.0", "vacuous": ["KVC-101", "KVC-603"]},
        {"vllm": "0.32.0", "vacuous": ["KVC-603"]},
        {"vllm": "0.18.0", "vacuous": []},
    ]
    assert soak._never(checks, "0.32.0") == ["KVC-603"]
    assert soak._never(checks, "0.18.0") == []


def test_what_cannot_be_checked_is_no_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert soak.main(["nobody", "--report", str(tmp_path)]) == 4
    assert "There is no target 'nobody'" in capsys.readouterr().err
