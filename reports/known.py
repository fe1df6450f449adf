"""``known.toml``: known failures, each with a crash file that shows it.

An entry is a table::

    [[known]]
    fingerprint = "6839ddf6ce"
    reason = "the decoder reports what it did not load"
    issue = "https://example.org/issues/7"
    expires = 2027-01-31
    scenario = "known/KVC-302-6839ddf6ce.json"

``scenario`` is a crash file, beside the file or below it. ``since`` and ``until`` name the first
and the last vLLM release on which the fault is there, where it is not there on all.
"""

from __future__ import annotations

import datetime
import difflib
import json
import re
import shutil
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvconform.reports import crash
from kvconform.scenario.errors import UsageError
from kvconform.scenario.known import Known
from kvconform.scenario.releases import release

FILE = "known.toml"
FOLDER = "known"
"""Where crash files are kept, beside the file."""

_TEXTS = ("fingerprint", "reason", "issue", "scenario")
_RANGE = ("since", "until")
_KEYS = (*_TEXTS, "expires", *_RANGE)


def read(path: Path, today: datetime.date | None = None) -> tuple[Known, ...]:
    """The entries of a file.

    Args:
        path: the file.
        today: the day by which entries expire; None: the real one.

    Raises:
        UsageError: the file, an entry or a crash file cannot be used.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(
            f"Cannot read the file of known failures {path}: {error.strerror}."
        ) from None
    except UnicodeDecodeError:
        raise UsageError(f"The file of known failures {path} is not UTF-8 text.") from None
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"The file of known failures {path} is not TOML: {error}.") from None
    entries = data.pop("known", [])
    if data:
        raise UsageError(f"{path}: unknown key {next(iter(data))!r}; entries are [[known]] tables.")
    if not isinstance(entries, list) or not all(isinstance(e, Mapping) for e in entries):
        raise UsageError(f"{path}: entries are [[known]] tables, with two brackets.")
    today = today or datetime.date.today()
    out: dict[str, Known] = {}
    for number, entry in enumerate(entries, 1):
        known = _entry(entry, path, f"{path}: entry {number}", today)
        if known.id in out:
            raise UsageError(f"{path}: entry {number}: {known.id} is there twice.")
        out[known.id] = known
    return tuple(out.values())


def _entry(entry: Mapping[str, Any], path: Path, where: str, today: datetime.date) -> Known:
    for key in entry:
        if key not in _KEYS:
            near = difflib.get_close_matches(key, _KEYS, 1)
            advice = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(_KEYS)}."
            raise UsageError(f"{where}: unknown key {key!r}; {advice}")
    for key in (*_TEXTS, "expires"):
        if key not in entry:
            raise UsageError(f"{where}: the key {key!r} is missing.")
    for key in (*_TEXTS, *_RANGE):
        if key in entry and not (isinstance(entry[key], str) and entry[key].strip()):
            raise UsageError(f"{where}: {key} must be a text, got {entry[key]!r}.")
    for key in _RANGE:
        if key in entry and not release(entry[key]):
            raise UsageError(f"{where}: {key} is a vLLM release such as 0.32.0.")
    issue = _link(entry["issue"], where)
    expires = _day(entry["expires"], where)
    stored = crash.read(path.parent / entry["scenario"])
    if stored.id != entry["fingerprint"]:
        raise UsageError(
            f"{where}: {entry['scenario']} shows {stored.id}, and not {entry['fingerprint']}."
        )
    return Known(
        stored.violation.fingerprint, entry["reason"].strip(), issue, expires.isoformat(),
        stored.scenario, path.name, today > expires, entry.get("since", ""),
        entry.get("until", ""),
    )  # fmt: skip


def _link(text: str, where: str) -> str:
    if not re.fullmatch(r"https?://[^\s/]+\S*", text):
        raise UsageError(
            f"{where}: issue must be a link that begins with https:// or http://, got {text!r}."
        )
    return text


def _day(value: Any, where: str) -> datetime.date:
    """A day, as a date of TOML or as text."""
    if isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
        return value
    try:
        if not isinstance(value, str) or not re.fullmatch(r"\d{4}-\d\d-\d\d", value):
            raise ValueError
        return datetime.date.fromisoformat(value)
    except ValueError:
        raise UsageError(f"{where}: expires is a day such as 2027-01-31, got {value}.") from None


def add(path: Path, crashed: Path, *, reason: str, issue: str, expires: str) -> Known:
    """Add an entry for a crash file, which is copied beside the file; returns the entry.

    Raises:
        UsageError: the crash file or the file cannot be used, it has such an entry already, or a
            value is not what it has to be.
    """
    stored = crash.read(crashed)
    there = read(path) if path.exists() else ()
    if any(known.id == stored.id for known in there):
        raise UsageError(f"{path} has an entry for {stored.id} already.")
    if not reason.strip() or not reason.isprintable():
        raise UsageError("--reason is a line of text, and not an empty one.")
    day = _day(expires, "--expires").isoformat()
    copy = path.parent / FOLDER / f"{stored.violation.fingerprint.rule}-{stored.id}.json"
    entry = (
        "[[known]]\n"
        f'fingerprint = "{stored.id}"\n'
        f"reason = {json.dumps(reason.strip(), ensure_ascii=False)}\n"
        f"issue = {json.dumps(_link(issue, '--issue'), ensure_ascii=False)}\n"
        f"expires = {day}\n"
        f'scenario = "{FOLDER}/{copy.name}"\n'
    )
    try:
        copy.parent.mkdir(parents=True, exist_ok=True)
        if not (copy.exists() and copy.samefile(crashed)):
            shutil.copyfile(crashed, copy)
        before = path.read_text(encoding="utf-8").rstrip() + "\n\n" if there else ""
        if not there and path.exists():  # nothing but comments
            before = path.read_text(encoding="utf-8")
        path.write_text(before + entry, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"Cannot write to {error.filename}: {error.strerror}.") from None
    return next(known for known in read(path) if known.id == stored.id)
