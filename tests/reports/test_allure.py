"""Allure results of a hand-made check: statuses, labels, steps, attachments, names that last."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from kvconform.scenario.errors import UsageError
from tests.reports import made
from tests.reports.results import attachments, labels, read, steps

pytest.importorskip("allure_commons")
from kvconform.reports import allure, crash

AT = 1_700_000_000_000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    allure.write(made.everything(), tmp_path, AT)
    return tmp_path


def test_a_result_for_each_rule(folder: Path) -> None:
    assert {rule: r["status"] for rule, r in read(folder).items()} == made.STATUSES


def test_labels_say_whose_and_how_bad(folder: Path) -> None:
    found = read(folder)
    assert labels(found["KVC-302"]) == {
        "epic": "pkg.mod:Mine",
        "feature": "store",
        "story": "KVC-302 title of KVC-302",
        "severity": "critical",
        "parentSuite": "pkg.mod:Mine",
        "suite": "store",
        "owner": "worker half",
    }
    assert labels(found["KVC-102"])["severity"] == "normal"
    assert labels(found["VLL-201"])["severity"] == "minor"
    assert labels(found["VLL-201"])["tag"] == "vLLM's own"


def test_steps_are_the_actions_of_the_shrunk_scenario(folder: Path) -> None:
    found = read(folder)
    assert steps(found["KVC-302"]) == made.STEPS
    assert steps(found["KVC-101"]) == [["fault 1", made.STEPS], ["fault 2", made.STEPS]]
    assert steps(found["KVC-001"]) == []


def test_scenario_trace_and_table_are_attached(folder: Path) -> None:
    found = read(folder)
    texts = {name: (kind, text) for name, kind, text in attachments(found["KVC-302"], folder)}
    assert list(texts) == ["table", "scenario", "trace"]
    assert texts["table"][0] == "text/plain"
    assert "arrive r0 prompt 0:16" in texts["table"][1]
    assert texts["scenario"][0] == texts["trace"][0] == "application/json"
    assert json.loads(texts["scenario"][1]) == made.SCENARIO.to_json()
    assert json.loads(texts["trace"][1]) == [e.to_json() for e in made.EVENTS]
    assert len(found["KVC-101"]["attachments"]) == 6


def test_details_tell_why_and_how_to_see_it_again(folder: Path) -> None:
    found = read(folder)
    message = found["KVC-302"]["statusDetails"]["message"]
    for words in ("expected: ", "got: ", "why: ", "reproduce: kvconform replay "):
        assert words in message
    assert "vacuous: never reached" in found["KVC-304"]["statusDetails"]["message"]
    assert "statusDetails" not in found["KVC-001"]


def test_nothing_is_handed_over_as_html(folder: Path) -> None:
    for result in read(folder).values():
        assert "descriptionHtml" not in result
        bare = re.sub(r"\\[!-/:-@\[-`{-~]", "", result["description"])
        assert not re.search(r"[<>&`*_\[\]]", bare), "all that could be markup is escaped"
    assert r"\<b id=" in read(folder)["KVC-302"]["description"]


def test_the_same_check_leaves_the_same_files(folder: Path, tmp_path: Path) -> None:
    before = {p.name: p.read_bytes() for p in folder.iterdir()}
    allure.write(made.everything(), folder, AT)
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == before


def test_another_seed_is_a_retry_and_another_target_is_not(tmp_path: Path) -> None:
    first = made.check(made.rule("KVC-302"))
    again = made.check(made.rule("KVC-302"), options={"level": "L3", "seed": 2, "examples": 20})
    other = made.check(made.rule("KVC-302"), target="other")
    for check in (first, again, other):
        allure.write(check, tmp_path, AT)
    results = [json.loads(p.read_text()) for p in tmp_path.glob("*-result.json")]
    assert len({r["uuid"] for r in results}) == 3
    assert len({r["historyId"] for r in results}) == len({r["testCaseId"] for r in results}) == 2


def test_environment_and_categories_lie_beside(folder: Path) -> None:
    assert (folder / "environment.properties").read_text().splitlines() == [
        "target=pkg.mod:Mine", "vLLM=0.32.0", "level=L3", "seed=1",
    ]  # fmt: skip
    assert json.loads((folder / "categories.json").read_text()) == allure.categories(
        [made.everything()]
    )


@pytest.mark.parametrize(
    ("rule", "category"),
    [
        ("KVC-101", "KVC-1xx lookup"),
        ("KVC-302", "KVC-3xx completion"),
        ("KVC-303", "inconclusive"),
        ("KVC-304", "vacuous"),
        ("VLL-201", "vLLM's own"),
        ("PROCESS", "the target's process"),
        ("KVC-001", None),
        ("KVC-601", None),
        ("VLL-202", None),
    ],
)
def test_every_finding_has_one_category(rule: str, category: str | None, folder: Path) -> None:
    result = read(folder)[rule]
    message = result.get("statusDetails", {}).get("message", "")
    # As Allure does it: the whole message has to match. pytest puts a name in front.
    for text in (message, f"Failed: \n====\n{message}"):
        fits = [
            c["name"]
            for c in allure.categories([made.everything()])
            if result["status"] in c["matchedStatuses"] and re.fullmatch(c["messageRegex"], text)
        ]
        assert fits == ([category] if category else [])


def test_a_bad_folder_gets_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"^Cannot make the folder .* for Allure results: .*\.$"):
        crash.make_folder(tmp_path / "file", "Allure results")


def test_a_known_failure_links_its_issue(folder: Path) -> None:
    result = read(folder)["KVC-801"]
    assert result["status"] == "skipped"
    assert result["links"] == [
        {"type": "issue", "url": made.KNOWN["issue"], "name": made.KNOWN["issue"]}
    ]
    assert result["statusDetails"]["known"] is True
    assert labels(result)["tag"] == "known failure"
    (category,) = (
        c for c in json.loads((folder / "categories.json").read_text())
        if c["name"] == "known failures"
    )  # fmt: skip
    assert re.fullmatch(category["messageRegex"], result["statusDetails"]["message"])
    assert "links" not in read(folder)["KVC-302"]


def test_tolerant_readings_are_part_of_the_environment(tmp_path: Path) -> None:
    options = {"level": "L3", "seed": 1, "examples": 20, "tolerant": ["KVC-301"]}
    allure.write(made.check(made.rule("KVC-301"), options=options), tmp_path, AT)
    assert "tolerant=KVC-301\n" in (tmp_path / "environment.properties").read_text()
