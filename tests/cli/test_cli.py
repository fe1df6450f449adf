"""The command line: exit codes, one sentence for bad input, no traceback, files that replay."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import jsonschema
import pytest

from kvconform.cli.main import main

ROOT = Path(__file__).resolve().parents[2]


def kvconform(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run the command in a fresh process."""
    return subprocess.run(
        [sys.executable, "-m", "kvconform", *arguments],
        cwd=cwd,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(
                filter(None, (str(ROOT), os.environ.get("PYTHONPATH", "")))
            ),
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A folder in which zoo:full-hit-report was checked, and the crash file of KVC-302."""
    folder = tmp_path_factory.mktemp("crashed")
    done = kvconform(
        "check", "zoo:full-hit-report", "--examples", "20", "--json", "report.json", cwd=folder
    )
    assert done.returncode == 1, done.stderr
    assert "KVC-302" in done.stdout
    assert "reproduce:  kvconform replay .kvconform/KVC-302-" in done.stdout
    assert not done.stderr
    (path,) = (folder / ".kvconform").glob("KVC-302-*.json")
    return folder, path


ENTRY = ["--reason", "a", "--issue", "https://example.org/7", "--expires", "2027-01-31"]
BAD_INPUT = [
    (["check", "no.such:Thing"], "no module 'no'"),
    (["check", "json:NoSuch"], "no class 'NoSuch'"),
    (["check", "json:JSONDecoder"], "is not a KV connector"),
    (["check", "nonsense"], "There is no target 'nonsense'"),
    (["check", "zoo:nonsense"], "There is no target 'zoo:nonsense'"),
    (["e2e", "nonsense"], "There is no target 'nonsense'"),
    (["e2e", "example", "--topology", "pd"], "example is for topology store, not pd"),
    (["e2e", "example", "--extra", "no"], "--extra is not JSON"),
    (["e2e", "nixl", "--role", "kv_both"], "the roles of nixl are known"),
    (["e2e", "ascend", "--requests", "2"], "--requests must be at least 8"),
    (["e2e", "ascend", "--scenes", "zzz"], "There is no scene 'zzz'; choose from wrong-prompt"),
    (["e2e", "zoo:finishes-twice"], "is no connector of its own"),
    (["e2e", "json:NoSuch"], "no class 'NoSuch'"),
    (["check", "missing.toml"], "Cannot read the target file missing.toml"),
    (["check", "broken.toml"], "is not TOML"),
    (["check", "unknown.toml"], "unknown field 'colour'"),
    (["check", "shape.toml"], "shape.tp: expected int, got 'a'"),
    (["check", "ascend", "--report", "/dev/null"], "Cannot make the folder /dev/null"),
    (["check", "role.toml"], "role must be one of"),
    (["check", "features.toml"], "there is no feature 'zzz'"),
    (["check", "scheduler.toml"], "no module 'nowhere' for the scheduler"),
    (["check", "dialect.toml"], "dialect has the tables"),
    (["check", "ascend", "--junit", "/dev/null/x.xml"], "JUnit"),
    (["check", "ascend", "--allure", "/dev/null/x"], "Cannot make the folder /dev/null/x"),
    (["check", "example", "--shape", "topology=pd"], "needs the dialect"),
    (["check", "ascend", "--shape", "topology=star"], "topology"),
    (["check", "ascend", "--profile", "nonsense"], "There is no profile 'nonsense'"),
    (["check", "ascend", "--level", "L9"], "There is no level 'L9'"),
    (["check", "ascend", "--faults", "nonsense"], "There is no fault package 'nonsense'"),
    (["check", "ascend", "--shape", "tp=0"], "tp must be at least 1"),
    (["check", "ascend", "--shape", "tp=x"], "tp is a number"),
    (["check", "ascend", "--shape", "colour=red"], "is not field=value"),
    (["check", "ascend", "--budget", "soon"], "--budget is a time"),
    (["check", "ascend", "--examples", "0"], "--examples must be at least 1"),
    (["check", "ascend", "--examples", "x"], "invalid int value"),
    (["check", "ascend", "--extra", "{"], "--extra is not JSON"),
    (["check", "ascend", "--extra", "3"], "must be a JSON object"),
    (["check", "ascend", "-n", "0"], "-n is a number of processes"),
    (["check", "ascend", "--hang-limit", "x"], "--hang-limit is a time"),
    (["check", "ascend", "--memory-limit", "x"], "--memory-limit is a size"),
    (["check"], "required: TARGET"),
    (["dance"], "invalid choice: 'dance'"),
    (["explain", "KVC-999"], "There is no rule 'KVC-999'"),
    (["explain", "nonsense"], "looks like KVC-302"),
    (["explain", "SCH-99"], "There is no statement 'SCH-99'"),
    (["replay", "nonsense"], "There is no crash file 'nonsense'"),
    (["replay", "missing.json"], "Cannot read missing.json"),
    (["replay", "broken.json"], "is not JSON"),
    (["replay", "other.json"], "is not a crash file"),
    (["replay", "half.json"], "field 'scenario' is missing"),
    (["check", "ascend", "--known", "missing.toml"], "Cannot read the file of known failures"),
    (["check", "ascend", "--known", "broken.toml"], "known failures broken.toml is not TOML"),
    (["check", "ascend", "--known", "unknown.toml"], "unknown.toml: unknown key 'cls'"),
    (["check", "ascend", "--tolerant", "KVC-302"], "KVC-302 has one reading only"),
    (["check", "ascend", "--tolerant", "nonsense"], "There is no rule 'NONSENSE'"),
    (["known", "half.json"], "required: --reason"),
    (["known", "half.json", *ENTRY], "field 'scenario' is missing"),
    (["known", "nonsense", *ENTRY], "There is no crash file 'nonsense'"),
]


@pytest.mark.parametrize(("arguments", "says"), BAD_INPUT, ids=[" ".join(a) for a, _ in BAD_INPUT])
def test_bad_input_gets_one_sentence(
    arguments: list[str],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("broken.toml").write_text("cls = [")
    Path("unknown.toml").write_text('cls = "a:B"\ncolour = "red"')
    Path("shape.toml").write_text('cls = "a:B"\n[shape]\ntp = "a"')
    Path("role.toml").write_text('cls = "a:B"\nrole = "boss"')
    Path("features.toml").write_text('cls = "a:B"\nfeatures = ["zzz"]')
    Path("scheduler.toml").write_text(
        'cls = "kvconform.connectors.ascend.connector:AscendConnector"\nscheduler = "nowhere:S"'
    )
    Path("dialect.toml").write_text('cls = "a:B"\n[dialect]\nprefil = {}')
    Path("broken.json").write_text("{")
    Path("other.json").write_text("[]")
    Path("half.json").write_text('{"format": 1, "target": {}, "violation": {}}')
    assert main(arguments) == 3
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("kvconform: ")
    assert says in captured.err
    assert captured.err.count("\n") == 1
    assert "Traceback" not in captured.err


def test_a_crash_replays_exactly_in_fresh_processes(crashed: tuple[Path, Path]) -> None:
    folder, path = crashed
    first = kvconform("replay", str(path), cwd=folder)
    second = kvconform("replay", str(path), cwd=folder)
    assert first.returncode == second.returncode == 1
    assert first.stdout == second.stdout
    assert "REPRODUCED  KVC-302, exactly as stored" in first.stdout


def test_a_crash_replays_by_its_id_and_against_another_connector(
    crashed: tuple[Path, Path],
) -> None:
    folder, path = crashed
    by_id = kvconform("replay", path.stem.rpartition("-")[2], cwd=folder)
    assert by_id.returncode == 1
    against = kvconform("replay", str(path), "--against", "ascend", cwd=folder)
    assert against.returncode == 0
    assert "PASSED  ascend" in against.stdout


def test_a_crash_becomes_a_test_that_fails_for_the_same_reason(crashed: tuple[Path, Path]) -> None:
    folder, path = crashed
    source = kvconform("replay", str(path), "--as-test", cwd=folder).stdout
    (folder / "test_it.py").write_text(source)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_it.py"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 1, done.stdout
    assert "KVC-302" in done.stdout
    assert "neither waiting nor finished" in done.stdout


def test_the_report_fits_its_schema(crashed: tuple[Path, Path]) -> None:
    folder, _ = crashed
    report = json.loads((folder / "report.json").read_text())
    schema = json.loads(files("kvconform.reports").joinpath("schema.json").read_text())
    jsonschema.validate(report, schema)
    assert list(report) == schema["required"]
    (rule,) = (r for r in report["rules"] if r["id"] == "KVC-302")
    assert rule["result"] == "fail"
    assert (folder / rule["failures"][0]["scenario"]).exists()


def test_json_on_standard_output_is_json_alone(tmp_path: Path) -> None:
    done = kvconform("check", "ascend", "--level", "L0", "--json", "-", cwd=tmp_path)
    assert done.returncode == 0
    assert json.loads(done.stdout)["profiles"] == [{"name": "store", "result": "partial"}]
    strict = kvconform("check", "ascend", "--level", "L0", "--strict", cwd=tmp_path)
    assert strict.returncode == 2


def test_a_toml_file_is_a_target(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(
        'cls = "kvconform.connectors.ascend.connector:AscendConnector"\n'
        'world = "transport"\nprofile = "offload"\n'
        "[extra]\n"
        'transport = "kvconform.faults.transport:connect"\nstore = "{run}"\n'
    )
    done = kvconform("check", "mine.toml", "--level", "L1", "--json", "r.json", cwd=tmp_path)
    assert done.returncode in (0, 2), done.stderr
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["target"]["name"] == "mine"
    assert report["profiles"][0]["name"] == "offload"


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("exits", "died: exit code 7"),
        ("crashes", "died: SIGSEGV"),
        ("hangs", "hung"),
        ("eats-memory", "took too much memory"),
    ],
)
def test_a_target_that_takes_its_process_down_is_named(name: str, how: str, tmp_path: Path) -> None:
    # Only what hangs shall meet that limit: elsewhere a slow machine would decide what is named.
    limits = ("--hang-limit", "8s" if name == "hangs" else "120s", "--memory-limit", "2g")
    done = kvconform("check", f"zoo:{name}-in-hook", "--level", "L1", *limits, cwd=tmp_path)
    assert done.returncode == 5
    assert f"KILLED  the target's process {how}" in done.stdout, done.stdout
    assert "worker half: start_load_kv" in done.stdout
    assert "Traceback" not in done.stderr
    (path,) = (tmp_path / ".kvconform").glob("KVC-010-*.json")
    after = kvconform("replay", str(path), "--against", "ascend", cwd=tmp_path)
    assert after.returncode == 0  # the run after is clean
    again = kvconform("replay", str(path), *limits, cwd=tmp_path)
    assert again.returncode == 5


def test_who_is_ended_from_outside_accuses_nobody(tmp_path: Path) -> None:
    (tmp_path / "ended.py").write_text(
        "import os, signal\n"
        "from kvconform.connectors.ascend.connector import AscendConnector\n"
        "class Ended(AscendConnector):\n"
        "    def start_load_kv(self, forward_context, **kwargs):\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "kvconform", "check", "ended:Ended", "--level", "L1"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path)])},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 4
    assert done.stderr.strip() == "kvconform: A worker process was ended from outside (SIGTERM)."
    assert "KVC-010" not in done.stdout


def test_results_do_not_depend_on_the_number_of_processes(tmp_path: Path) -> None:
    reports = []
    for processes in ("1", "2"):
        done = kvconform(
            "check", "zoo:full-hit-report", "--examples", "24", "-n", processes,
            "--json", "r.json", cwd=tmp_path,
        )  # fmt: skip
        assert done.returncode == 1, done.stderr
        report = json.loads((tmp_path / "r.json").read_text())
        for varies in ("seconds", "command", "processes"):
            del report["run"][varies]
        reports.append(report)
    assert reports[0] == reports[1]


@pytest.mark.parametrize("what", ["rules", "faults", "profiles", "targets", "mutants"])
def test_lists(what: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", what]) == 0
    text = capsys.readouterr().out
    assert main(["list", what, "--json"]) == 0
    entries = json.loads(capsys.readouterr().out)
    assert len(entries) == len(text.splitlines()) > 0
    assert all(e["name"] in text for e in entries)


def test_explain_shows_what_the_catalogue_says(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "kvc-302"]) == 0
    text = capsys.readouterr().out
    assert "only finished or waiting requests are received" in text
    assert "_update_from_kv_xfer_finished" in text


def test_explain_knows_statements(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "sch-04"]) == 0
    assert "KVC-105 a lookup can be repeated" in capsys.readouterr().out
    assert main(["explain", "DAT-09"]) == 0
    assert "why not" in capsys.readouterr().out


def test_doctor_is_ready(tmp_path: Path) -> None:
    done = kvconform("doctor", cwd=tmp_path)
    assert done.returncode == 0
    assert "READY" in done.stdout


def test_doctor_lists_what_has_changed_of_the_contract(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--since", "0.32.0", "--until", "0.33.0"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "contract changed between 0.32.0 and 0.33.0:"
    assert "  KVConnectorBase_V1.restore_kv_caches is new: (self)" in lines
    assert main(["doctor", "--since", "0.33.0", "--until", "0.33.0"]) == 0
    assert "did not change" in capsys.readouterr().out
    assert main(["doctor", "--since", "0.12"]) == 3
    assert "measured on 0.11.0, 0.11.2" in capsys.readouterr().err
