"""Allure result files, through allure-pytest's own commons package.

A check becomes a result for each rule (``write``). Where pytest runs and allure-pytest makes the
result, ``tell`` adds the same labels, steps and attachments to it. All texts are given as plain
text or as Markdown that is plain text: Allure escapes them, and no HTML is ever handed to it.

Importing this module needs the extra ``allure``.
"""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from allure_commons.logger import AllureFileLogger
from allure_commons.model2 import (
    ATTACHMENT_PATTERN,
    TEST_CASE_PATTERN,
    Attachment,
    Label,
    Link,
    Parameter,
    StatusDetails,
    TestResult,
    TestStepResult,
)
from allure_commons.types import AttachmentType, LabelType, LinkType
from allure_commons.utils import md5, now

from kvconform.reports.outcome import PROCESS, Case, Fault, cases, legible
from kvconform.scenario.errors import UsageError

_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "kvconform:allure")
_FAMILIES = {
    "KVC-0": "shape",
    "KVC-1": "lookup",
    "KVC-2": "metadata",
    "KVC-3": "completion",
    "KVC-4": "memory",
    "KVC-5": "content",
    "KVC-6": "failure",
    "KVC-7": "progress",
    "KVC-8": "composition",
    "KVC-9": "observation",
}


def write(check: Mapping[str, Any], folder: Path, at: int | None = None) -> None:
    """Write the results of a check (see ``outcome``).

    File names follow from target, profile, rule, vLLM and options: the same check written twice
    leaves one result, and another seed's result is shown as a retry.

    Args:
        check: what was found.
        folder: where to; results of other checks stay.
        at: when, in milliseconds since 1970; None: now.

    Raises:
        UsageError: the folder cannot be written to.
    """
    at = now() if at is None else at
    try:
        logger = AllureFileLogger(str(folder))
        # Allure orders results by time. A millisecond apart, they keep the order of the rules.
        for index, case in enumerate(cases(check)):
            _write(case, check, logger, at + index)
        accompany([check], folder)
    except OSError as error:
        raise UsageError(f"Cannot write Allure results to {folder}: {error.strerror}.") from None


def _write(case: Case, check: Mapping[str, Any], logger: Any, at: int) -> None:
    run = [check["target"], check["profile"], case.id, check["vllm"], check["options"]]
    own = uuid.uuid5(_NAMESPACE, json.dumps(run, sort_keys=True))
    same = md5(*(f"{part}\n" for part in run[:3]))
    result = TestResult(
        uuid=str(own),
        name=case.name,
        fullName=legible(f"{check['target']}.{check['profile']}#{case.id}"),
        historyId=same,
        testCaseId=same,
        status=case.status,
        description=_description(case),
        labels=[Label(name, value) for name, value in _labels(case, check)],
        parameters=[Parameter(name, value) for name, value in _parameters(check)],
        # The check is one run for all rules: no rule has a time of its own.
        start=at,
        stop=at,
    )
    if case.status != "passed":
        result.statusDetails = StatusDetails(
            message=case.gist, trace=case.text, known=case.known or None
        )
    result.links = [Link(type=LinkType.ISSUE, url=url, name=url) for url in case.issues]
    result.steps = [_step(words, below, at) for words, below in _steps(case)]
    for name, body, kind in _attachments(case):
        source = ATTACHMENT_PATTERN.format(prefix=uuid.uuid5(own, name), ext=kind.extension)
        logger.report_attached_data(body, source)
        result.attachments.append(Attachment(name, source, kind.mime_type))
    # Else the logger draws a name.
    result.file_pattern = TEST_CASE_PATTERN.format(prefix=own)
    logger.report_result(result)


def tell(case: Case, check: Mapping[str, Any]) -> None:
    """Add a case to the result of the test that runs now under allure-pytest."""
    import allure

    allure.dynamic.title(case.name)
    allure.dynamic.description(_description(case))
    for name, value in _labels(case, check):
        allure.dynamic.label(name, value)
    for name, value in _parameters(check):
        allure.dynamic.parameter(name, value)
    for url in case.issues:
        allure.dynamic.link(url, link_type=LinkType.ISSUE, name=url)
    for words, below in _steps(case):
        with allure.step(words):
            for inner in below:
                with allure.step(inner):
                    pass
    for name, body, kind in _attachments(case):
        allure.attach(body, name, kind)


def accompany(checks: Sequence[Mapping[str, Any]], folder: Path) -> None:
    """Write what Allure shows beside the results: environment and categories."""
    facts: dict[str, list[str]] = {}
    for check in checks:
        options = check["options"]
        for name, value in (
            ("target", check["target"]),
            ("vLLM", check["vllm"]),
            ("level", options["level"]),
            ("seed", str(options["seed"])),
            *(("tolerant", rule) for rule in options.get("tolerant", ())),
        ):
            known = facts.setdefault(name, [])
            if value not in known:
                known.append(value)
    lines = [f"{name}={_property(', '.join(values))}\n" for name, values in facts.items()]
    _replace(folder / "environment.properties", "".join(lines))
    _replace(folder / "categories.json", json.dumps(categories(checks), indent=1) + "\n")


def categories(checks: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Allure's categories: families of rules that failed, what was not proven, what is vLLM's.

    The expressions are read by Java and by JavaScript: nothing that only one of them knows.
    """
    ids = {rule["id"] for check in checks for rule in check["rules"]}
    families = sorted({rule[:5] for rule in ids if rule.startswith("KVC")})
    # A message begins with the rule, but for pytest's name of the exception and a line of "=".
    named = [(f"{f}xx {_FAMILIES.get(f, '')}".strip(), rf"{f}\d\d") for f in families]
    named.append(("the target's process", PROCESS))
    out = [_category(n, "failed", rf"\W*(?:Failed:)?\W*{p}\b[\s\S]*") for n, p in named]
    out += [_category(word, "broken", rf"[\s\S]*\b{word}:[\s\S]*") for word in _UNPROVEN]
    out.append(_category("known failures", "skipped", r"[\s\S]*\bknown_fail:[\s\S]*"))
    return [*out, _category("vLLM's own", "skipped", r"[\s\S]*vLLM's own[\s\S]*")]


_UNPROVEN = ("vacuous", "inconclusive")


def _category(name: str, status: str, message: str) -> dict[str, Any]:
    return {"name": name, "matchedStatuses": [status], "messageRegex": message}


# -- what `write` and `tell` have in common -------------------------------------------------------


def _labels(case: Case, check: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    target, profile = legible(check["target"]), check["profile"]
    yield LabelType.EPIC, target
    yield LabelType.FEATURE, profile
    yield LabelType.STORY, case.name
    yield LabelType.SEVERITY, case.severity
    yield LabelType.PARENT_SUITE, target
    yield LabelType.SUITE, profile
    yield "owner", case.side
    if case.is_vllms:
        yield LabelType.TAG, "vLLM's own"
    if case.known:
        yield LabelType.TAG, "known failure"


def _parameters(check: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What tells one target's result from another's where the same test makes both."""
    yield "target", legible(check["target"])
    yield "profile", check["profile"]


def _steps(case: Case) -> Iterator[tuple[str, Sequence[str]]]:
    """Steps, each with those below it: the actions; of several faults, below a step for each."""
    if len(case.faults) == 1:
        for words in case.faults[0].steps:
            yield words, ()
        return
    for number, fault in enumerate(case.faults, 1):
        if fault.steps:
            yield f"fault {number}", fault.steps


def _step(words: str, below: Sequence[str], at: int) -> TestStepResult:
    steps = [_step(inner, (), at) for inner in below]
    return TestStepResult(name=words, status="passed", steps=steps, start=at, stop=at)


def _attachments(case: Case) -> Iterator[tuple[str, str, AttachmentType]]:
    for number, fault in enumerate(case.faults, 1):
        which = f" of fault {number}" if len(case.faults) > 1 else ""
        for name, body, kind in _attached(fault):
            yield name + which, body, kind


def _attached(fault: Fault) -> Iterator[tuple[str, str, AttachmentType]]:
    if fault.events:
        yield "table", fault.table + "\n", AttachmentType.TEXT
    if fault.scenario["actions"]:
        yield "scenario", json.dumps(fault.scenario, indent=1) + "\n", AttachmentType.JSON
    if fault.events:
        yield "trace", json.dumps(fault.events, indent=1) + "\n", AttachmentType.JSON


def _description(case: Case) -> str:
    """Paragraphs of Markdown in which nothing is markup, and nothing can become HTML."""
    return "\n\n".join(re.sub(r"([\\`*_\[\]<>&#|~!])", r"\\\1", part) for part in case.about)


def _property(value: str) -> str:
    """A value of a Java properties file."""
    escaped = legible(value).replace("\\", "\\\\")
    return escaped.replace("\n", "\\n").replace("\r", "\\r")


def _replace(path: Path, text: str) -> None:
    """Write a file in one go: several processes may write the same one."""
    new = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    new.write_text(text, encoding="utf-8")
    new.replace(path)
