"""``known.toml``: what is read, what is refused, and what the command writes."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest

from kvconform.reports import crash, known
from kvconform.scenario.errors import UsageError
from kvconform.scenario.known import Known
from kvconform.scenario.target import Target
from kvconform.scenario.violation import Violation
from tests.reports import made

VIOLATION = Violation.from_json(made.fault("KVC-302")["violation"])
ID = VIOLATION.fingerprint.id
CRASH = crash.Crash(Target("mine", "pkg.mod:Mine"), VIOLATION, made.SCENARIO)
ENTRY = f"""
[[known]]
fingerprint = "{ID}"
reason = "a reason"
issue = "https://example.org/7"
expires = 2027-01-31
scenario = "KVC-302-{ID}.json"
"""


def read(folder: Path, text: str, today: str = "2027-01-01") -> tuple[Known, ...]:
    crash.write(CRASH, folder)
    path = folder / known.FILE
    path.write_text(text, encoding="utf-8")
    return known.read(path, datetime.date.fromisoformat(today))


def test_an_entry_is_read_with_the_scenario_beside_it(tmp_path: Path) -> None:
    (entry,) = read(tmp_path, ENTRY)
    assert entry == Known(
        VIOLATION.fingerprint, "a reason", "https://example.org/7", "2027-01-31", made.SCENARIO
    )
    assert read(tmp_path, "") == ()


def test_an_entry_holds_to_the_end_of_its_day(tmp_path: Path) -> None:
    assert not read(tmp_path, ENTRY, "2027-01-31")[0].expired
    assert read(tmp_path, ENTRY, "2027-02-01")[0].expired
    as_text = ENTRY.replace("2027-01-31", '"2027-01-31"')
    assert read(tmp_path, as_text)[0].expires == "2027-01-31"


BAD = [
    ("known = [", "is not TOML"),
    ('colour = "red"', "unknown key 'colour'"),
    ("[known]\nfingerprint = 'a'", "with two brackets"),
    (ENTRY + 'resaon = "x"', "unknown key 'resaon'; did you mean 'reason'?"),
    (ENTRY + 'colour = "x"', "unknown key 'colour'; known are fingerprint"),
    (ENTRY.replace('reason = "a reason"', ""), "the key 'reason' is missing"),
    (ENTRY.replace('"a reason"', '"  "'), "reason must be a text"),
    (ENTRY.replace('"a reason"', "7"), "reason must be a text"),
    (ENTRY.replace("https://example.org/7", "#7"), "issue must be a link"),
    (ENTRY.replace("2027-01-31", "2027-01-31T00:00:00Z"), "expires is a day"),
    (ENTRY.replace("2027-01-31", '"next year"'), "expires is a day"),
    (ENTRY.replace("2027-01-31", '"2027-02-31"'), "expires is a day"),
    (ENTRY.replace("KVC-302-", "gone-"), "Cannot read"),
    (ENTRY.replace(f'"{ID}"', '"0123456789"'), f"shows {ID}, and not 0123456789"),
    (ENTRY + ENTRY, f"entry 2: {ID} is there twice"),
    (ENTRY + 'since = "new"', "since is a vLLM release"),
]


@pytest.mark.parametrize(("text", "says"), BAD, ids=[says for _, says in BAD])
def test_what_cannot_be_used_gets_one_sentence(text: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        read(tmp_path, text)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_gets_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Cannot read the file of known failures"):
        known.read(tmp_path / "nowhere.toml")


def add(path: Path, crashed: Path, **more: str) -> Known:
    said = {"reason": 'so "far"', "issue": "https://example.org/7", "expires": "2999-12-31"}
    return known.add(path, crashed, **said | more)


def test_what_is_added_can_be_read_and_stands_alone(tmp_path: Path) -> None:
    crashed = crash.write(CRASH, tmp_path / ".kvconform")
    path = tmp_path / "gate" / known.FILE
    path.parent.mkdir()
    path.write_text("# ours\n")
    entry = add(path, crashed)
    crashed.unlink()
    assert known.read(path) == (entry,)
    assert entry.reason == 'so "far"'
    assert path.read_text().startswith("# ours\n")
    other = Violation.from_json(made.fault("KVC-101")["violation"])
    second = crash.write(crash.Crash(CRASH.target, other, made.SCENARIO), tmp_path)
    assert [e.id for e in known.read(path)] == [ID]
    add(path, second)
    assert [e.id for e in known.read(path)] == [ID, other.fingerprint.id]


def test_what_cannot_be_added_leaves_the_file_alone(tmp_path: Path) -> None:
    crashed = crash.write(CRASH, tmp_path / ".kvconform")
    path = tmp_path / known.FILE
    for more, says in (
        ({"reason": " "}, "--reason"),
        ({"reason": "a\nb"}, "--reason"),
        ({"issue": "7"}, "--issue: issue must be a link"),
        ({"expires": "soon"}, "--expires: expires is a day"),
    ):
        with pytest.raises(UsageError, match=says):
            add(path, crashed, **more)
        assert not path.exists()
    add(path, crashed)
    before = path.read_text()
    with pytest.raises(UsageError, match="has an entry for"):
        add(path, crashed)
    assert path.read_text() == before
