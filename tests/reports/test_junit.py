"""JUnit XML: held against the elements and attributes that Jenkins' schema knows."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from kvconform.reports import junit
from kvconform.scenario.errors import UsageError
from tests.reports import made

COUNTS = {"name", "tests", "failures", "errors", "time"}
# Element: its attributes, required ones first, and the elements that it may hold. From the schema
# junit-10.xsd of Jenkins' xUnit plugin, as far as a report of ours goes.
SCHEMA = {
    "testsuites": (set(), COUNTS | {"disabled"}, {"testsuite"}),
    "testsuite": ({"name", "tests"}, COUNTS | {"skipped"}, {"properties", "testcase"}),
    "properties": (set(), set(), {"property"}),
    "property": ({"name", "value"}, {"name", "value"}, set()),
    "testcase": (
        {"name"},
        {"name", "classname", "time"},
        {"skipped", "error", "failure"},
    ),
    "skipped": (set(), {"type", "message"}, set()),
    "error": (set(), {"type", "message"}, set()),
    "failure": (set(), {"type", "message"}, set()),
}


def problems(element: ET.Element) -> list[str]:
    required, allowed, inner = SCHEMA[element.tag]
    found = [f"{element.tag} lacks {name}" for name in sorted(required - set(element.attrib))]
    found += [f"{element.tag} has {name}" for name in sorted(set(element.attrib) - allowed)]
    if element.tag == "testcase" and len(element) > 1:
        found.append("a testcase has one outcome")
    for child in element:
        if child.tag not in inner:
            found.append(f"{element.tag} holds {child.tag}")
        else:
            found += problems(child)
    return found


def test_the_schema_test_can_fail() -> None:
    wrong = ET.fromstring('<testsuite tests="1" colour="red"><failure/></testsuite>')
    assert problems(wrong) == [
        "testsuite lacks name",
        "testsuite has colour",
        "testsuite holds failure",
    ]


def test_a_report_fits_the_schema_and_its_counts_are_right() -> None:
    root = ET.fromstring(junit.render(made.everything()))
    assert root.tag == "testsuites"
    assert problems(root) == []
    (suite,) = root
    assert suite.get("name") == "store"
    tests = suite.findall("testcase")
    for attribute, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        assert int(suite.attrib[attribute]) == len(suite.findall(f"testcase/{tag}")) > 0
    assert int(suite.attrib["tests"]) == len(tests) == len(made.STATUSES)
    assert {t.get("classname") for t in tests} == {"pkg.mod:Mine.store"}
    assert "KVC-302 title of KVC-302" in {t.get("name") for t in tests}


def test_each_case_has_the_outcome_of_its_rule() -> None:
    tags = {None: "passed", "failure": "failed", "error": "broken", "skipped": "skipped"}
    root = ET.fromstring(junit.render(made.everything()))
    outcomes = {
        test.attrib["name"].split()[0]: tags[test[0].tag if len(test) else None]
        for test in root.iter("testcase")
    }
    assert outcomes == made.STATUSES
    for test in root.iter("testcase"):
        for why in test:
            assert test.attrib["name"].split()[0] in why.attrib["message"]
            assert "\n" not in why.attrib["message"]


def test_markup_stays_text_and_forbidden_characters_go() -> None:
    data = junit.render(made.everything())
    assert b"<b id" not in data
    root = ET.fromstring(data)
    (failure,) = root.findall(".//failure[@type='KVC-302']")
    assert '<b id="raw">&amp; *bold* `code` [a](b)   é</b>' in failure.attrib["message"]


@pytest.mark.parametrize("name", [".", "file/below/r.xml", "/dev/null/r.xml"])
def test_a_bad_path_gets_one_sentence(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"^Cannot (make|write) .*the JUnit file.*[a-z]\.$"):
        junit.prepare(tmp_path / name)


def test_folders_on_the_way_are_made(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "r.xml"
    junit.prepare(path)
    assert not path.exists()
    junit.write(made.check(made.rule("KVC-001")), path)
    assert ET.parse(path).getroot().get("tests") == "1"


def test_entries_that_have_changed_are_properties() -> None:
    fixed = {**made.KNOWN, "status": "fixed", "message": "remove <this> entry"}
    root = ET.fromstring(junit.render(made.check(made.rule("KVC-801", known=[fixed]))))
    said = {p.get("name"): p.get("value") for p in root.iter("property")}
    assert said["known failure"] == "remove <this> entry"
    assert problems(root) == []


def test_a_known_failure_is_skipped_and_links_its_issue() -> None:
    root = ET.fromstring(junit.render(made.everything()))
    case = next(c for c in root.iter("testcase") if "KVC-801" in c.get("name", ""))
    skipped = case.find("skipped")
    assert skipped is not None
    assert made.KNOWN["issue"] in skipped.get("message", "")
