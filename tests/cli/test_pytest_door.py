"""The suite for pytest, and the class: a test per rule, the same results for every ``-n``."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvconform.conformance.suite import ConnectorConformance
from kvconform.conformance.suite.connector import wanted
from kvconform.conformance.suite.once import once

ROOT = Path(__file__).resolve().parents[2]


def pytest_in(cwd: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rA", *arguments],
        cwd=cwd,
        # Wide, so that the summary shows the message.
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def suite(cwd: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return pytest_in(cwd, "--pyargs", "kvconform.conformance.suite", *arguments)


def results(text: str) -> dict[str, str]:
    found = re.findall(
        r"^(PASSED|FAILED|SKIPPED).*?(test_rule\[\w+-\d+\]|test_process)", text, re.M
    )
    return {name: word for word, name in found}


def test_the_suite_fails_on_the_rule_and_equally_for_every_n(tmp_path: Path) -> None:
    options = ("--kvc-target=zoo:full-hit-report", "--kvc-examples=20")
    one = suite(tmp_path, *options)
    two = suite(tmp_path, *options, "-n", "2")
    assert one.returncode == two.returncode == 1, one.stdout + one.stderr
    assert results(one.stdout)["test_rule[KVC-302]"] == "FAILED"
    assert results(one.stdout)["test_rule[KVC-101]"] == "PASSED"
    assert results(one.stdout) == results(two.stdout)
    assert results(one.stdout)["test_rule[VLL-001]"] == "PASSED"
    assert "reproduce:  kvconform replay" in one.stdout
    assert "- Failed: KVC-302  only finished or waiting requests are received" in one.stdout


def test_what_was_not_put_to_the_test_is_no_pass(tmp_path: Path) -> None:
    done = suite(tmp_path, "--kvc-target=ascend", "--kvc-level=L1", "--kvc-faults=none")
    assert done.returncode == 1
    assert results(done.stdout)["test_rule[KVC-304]"] == "FAILED"
    assert "- KVC-304 vacuous: never reached: a request that ended while" in done.stdout
    assert "Traceback" not in done.stdout
    assert "def hold" not in done.stdout


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
    assert (done.stdout + done.stderr).count(says) == 1, done.stdout + done.stderr


def test_without_a_target_many_workers_say_so_once_too(tmp_path: Path) -> None:
    done = suite(tmp_path, "-n", "2")
    assert done.returncode != 0
    assert done.stdout.count("ERROR collecting") == 1
    assert "the suite needs --kvc-target" in done.stdout


# -- the class ------------------------------------------------------------------------------------

HEAD = "from kvconform.conformance.suite import ConnectorConformance\n\n"


def write(folder: Path, body: str) -> None:
    (folder / "test_mine.py").write_text(f"{HEAD}class TestMine(ConnectorConformance):\n    {body}")


def test_a_class_gives_a_test_for_each_rule_and_keeps_its_own(tmp_path: Path) -> None:
    write(tmp_path, 'target = "ascend"\n    level = "L0"\n    def test_own(self) -> None: pass\n')
    done = pytest_in(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    found = results(done.stdout)
    assert found["test_rule[KVC-001]"] == found["test_process"] == "PASSED"
    assert "PASSED test_mine.py::TestMine::test_own" in done.stdout
    assert "ConnectorConformance::" not in done.stdout


def test_a_class_finds_a_connector_that_pytest_finds(tmp_path: Path) -> None:
    (tmp_path / "beside").mkdir()
    (tmp_path / "beside" / "mine.py").write_text(
        "from kvconform.connectors.ascend.connector import AscendConnector as Mine\n"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = beside\n")
    write(tmp_path, 'target = "mine:Mine"\n    level = "L0"\n')
    done = pytest_in(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("pass", 'TestMine needs a target, such as target = "package.module:Class".'),
        ('target = "nonsense"', "TestMine: There is no target 'nonsense'"),
        ('target = "ascend"; level = "L9"', "TestMine: There is no level 'L9'"),
        ('target = "ascend"; profile = "x"', "TestMine: There is no profile 'x'"),
        ('target = "ascend"; shape = {"tp": 0}', "tp must be at least 1"),
        ('taget = "ascend"', "TestMine.taget is no attribute"),
    ],
)
def test_a_class_that_cannot_be_checked_says_so_once(body: str, says: str, tmp_path: Path) -> None:
    write(tmp_path, body + "\n")
    done = pytest_in(tmp_path)
    assert done.returncode == 2
    assert done.stdout.count("ERROR collecting") == 1
    assert says in done.stdout


def _test(self: Any) -> None: ...


@pytest.mark.parametrize(
    ("attributes", "says"),
    [
        ({"test_rule": _test}, "overrides test_rule of ConnectorConformance"),
        ({"test_process_survives": _test}, "overrides test_process_survives"),
        ({"kvc_verdict": _test}, "overrides the fixture kvc_verdict"),
        ({"taget": "x"}, "taget is no attribute of ConnectorConformance; did you mean target?"),
        ({"colour": "red"}, "colour is no attribute of ConnectorConformance; it has target, "),
        ({"test_data": [1]}, "test_data is no attribute"),
        ({"examples": "9"}, "examples must be int, got '9'"),
        ({"examples": True}, "examples must be int, got True"),
        ({"target": None}, "target must be str, got None"),
        ({"extra": [1]}, "extra must be str or Mapping, got "),
        ({"__init__": _test}, "has __init__, and pytest collects no class that has one"),
    ],
)
def test_a_mistake_in_a_class_gets_one_sentence(attributes: dict[str, Any], says: str) -> None:
    with pytest.raises(TypeError, match=re.escape(says)) as caught:
        type("TestMine", (ConnectorConformance,), attributes)
    assert "\n" not in str(caught.value)


def test_a_class_beside_ours_may_not_override_either() -> None:
    beside = type("Beside", (), {"test_rule": _test})
    with pytest.raises(TypeError, match="overrides test_rule"):
        type("TestMine", (beside, ConnectorConformance), {"target": "ascend"})


def test_attributes_become_what_the_options_say() -> None:
    class Mine(ConnectorConformance):
        target = "ascend"
        shape = {"tp": 2, "async_scheduling": True}  # noqa: RUF012
        extra = {"a": 1}  # noqa: RUF012
        _private = 1

        def test_own(self) -> None: ...

    asked = wanted(Mine, 2)
    assert (asked.shape, asked.extra) == ("tp=2,async_scheduling=True", '{"a": 1}')
    assert asked.processes == 2
    assert asked.key == wanted(Mine, 1).key, "no result depends on the number of processes"
    assert asked.key != wanted(type("Other", (Mine,), {"seed": 2})).key


NEEDED = ("pytest", "_pytest", "py", "pluggy", "iniconfig", "packaging", "pygments")


def test_without_vllm_collection_says_so(tmp_path: Path) -> None:
    """In an interpreter that has only what pytest and the plugin import."""
    packages = tmp_path / "packages"
    packages.mkdir()
    for name in NEEDED:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.origin is not None:
            origin = Path(spec.origin)
            origin = origin.parent if spec.submodule_search_locations else origin
            for path in (origin, *origin.parent.glob(f"{name}-*.dist-info")):
                (packages / path.name).symlink_to(path)
    write(tmp_path, 'target = "ascend"\n')
    done = subprocess.run(
        [sys.executable, "-S", "-m", "pytest", "-p", "kvconform.cli.pytest_plugin", "test_mine.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(packages), str(ROOT)])},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 2, done.stdout + done.stderr
    assert "kvconform: TestMine: vLLM is not installed in this environment" in done.stdout
    assert done.stdout.count("ERROR collecting") == 1


# -- one check for all ----------------------------------------------------------------------------


def test_what_several_want_is_made_once_while_the_others_are_kept_out(tmp_path: Path) -> None:
    path = tmp_path / "a" / "x.json"
    made = []

    def make() -> dict[str, int]:
        made.append(1)
        with path.with_suffix(".lock").open("w") as other, pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return {"n": len(made)}

    assert [once(path, make) for _ in range(3)] == [{"n": 1}] * 3
    assert made == [1]


def test_what_could_not_be_made_is_tried_again(tmp_path: Path) -> None:
    def fails() -> None:
        raise ValueError

    with pytest.raises(ValueError, match=r"^$"):
        once(tmp_path / "x.json", fails)
    assert once(tmp_path / "x.json", lambda: 3) == 3
