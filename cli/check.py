"""``kvconform check``."""

from __future__ import annotations

import argparse
import dataclasses
import json
import shlex
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from kvconform import __version__
from kvconform.cli import options as parse
from kvconform.conformance.check import LEVELS, Checked, Options, check_connector
from kvconform.conformance.cycle import PAIRS
from kvconform.conformance.profiles import find as find_profile
from kvconform.conformance.report import report, rules_data, run_data
from kvconform.conformance.rules import BY_ID, rule_data
from kvconform.conformance.verdict import EXIT_HARNESS, counts, exit_code
from kvconform.connectors.targets.resolve import resolve, with_flags
from kvconform.faults.devices import describe
from kvconform.faults.packages import select
from kvconform.reports import coverage, crash, junit, known, terminal
from kvconform.scenario.errors import UsageError


def check(options: argparse.Namespace, line: list[str]) -> int:
    """Check a connector; prints the verdict, and writes crash files and the report.

    Raises:
        UsageError: see there.
    """
    target = with_flags(
        resolve(options.target), role=options.role, extra=options.extra, tolerant=options.tolerant,
        device=options.device,
    )  # fmt: skip
    if options.examples < 1:
        raise UsageError(f"--examples must be at least 1, got {options.examples}.")
    level = parse.level(options.level, LEVELS)
    # Before minutes of work could be lost.
    crash.make_folder(Path(options.report))
    if options.junit:
        junit.prepare(Path(options.junit))
    allure = _allure() if options.allure else None
    if allure is not None:
        crash.make_folder(Path(options.allure), "Allure results")
    if options.profile is not None:
        find_profile(options.profile)
    wanted = Options(
        level=level,
        profile=options.profile,
        faults=select(options.faults),
        shape=parse.shape(options.shape, options.policy),
        examples=options.examples,
        seed=options.seed,
        budget=parse.seconds(options.budget, "--budget") if options.budget else None,
        processes=parse.processes(options.processes),
        limits=parse.limits(options.hang_limit, options.memory_limit),
        known=known.read(Path(options.known)) if options.known else (),
    )
    ticker = Ticker()
    try:
        checked = check_connector(target, wanted, ticker.tell)
    finally:
        ticker.clear()
    out = sys.stderr if options.json == "-" else sys.stdout
    paths = store(checked, Path(options.report))
    for verdict in checked.verdict.rules:
        for finding in verdict.findings:
            path = paths.get(finding.violation.fingerprint.id)
            if finding.excused:
                assert finding.known is not None
                print(terminal.known(finding.known, rule_data(verdict.rule), path), file=out)
                continue
            print(
                terminal.fault(
                    finding.violation,
                    finding.scenario,
                    finding.trace,
                    rule_data(verdict.rule),
                    path,
                    finding.runs,
                ),
                file=out,
            )
            if not finding.confirmed:
                print("  NOT CONFIRMED: played again, the scenario ended differently.", file=out)
    for index, death in enumerate(checked.deaths):
        print(terminal.death(death, paths.get(f"death-{index}")), file=out)
    command = shlex.join(line)
    profile = checked.verdict.profile.name
    title = f"{target.name} ({target.cls}), profile {profile}, vLLM {checked.vllm}"
    if target.device != "cpu":
        title += f", {describe(target.device)}"
    print(
        terminal.summary(
            title,
            _result(checked),
            rules_data(checked, paths),
            run_data(checked, command),
            checked.features,
        ),
        file=out,
    )
    if checked.contract.get("changes"):
        print(terminal.drift(checked.vllm, checked.contract), file=out)
    ours = [f for f in checked.findings if f.violation.fingerprint.side == "vLLM"]
    others = [f for f in checked.findings if not counts(f, target.class_name)]
    if ours:
        print(
            f"  notice: {len(ours)} of the findings are vLLM's own; they do not count against "
            "the target",
            file=out,
        )
    for stand in checked.stands:
        if stand.status != "known":
            print(f"  notice: {stand.message}", file=out)
    for name in sorted({f.violation.fingerprint.target for f in others}):
        print(f"  notice: faults of {name} beside the target do not count against it", file=out)
    if options.coverage:
        print(_coverage(checked), file=out)
    if options.json:
        write_json(report(checked, __version__, command, paths), options.json)
    if options.junit:
        junit.write(as_data(checked, paths), Path(options.junit))
    if allure is not None:
        allure.write(as_data(checked, paths), Path(options.allure))
    return exit_code(checked.verdict, strict=options.strict, killed=bool(checked.deaths))


def _result(checked: Checked) -> str:
    """The verdict in a word or two."""
    if checked.deaths:
        return "killed"
    if exit_code(checked.verdict) == EXIT_HARNESS:
        return "nondeterministic: a fault was seen, and not again when its scenario was replayed"
    return checked.verdict.result


def as_data(checked: Checked, paths: Mapping[str, str]) -> dict[str, Any]:
    """A check as JSON data, with all that test reports show (see ``reports/outcome.py``)."""
    target, options = checked.target, checked.options
    return {
        "target": target.name,
        "profile": checked.verdict.profile.name,
        "vllm": checked.vllm,
        "seconds": checked.progress.seconds,
        "options": {
            "level": options.level,
            "seed": options.seed,
            "examples": options.examples,
            "faults": ",".join(sorted(options.faults)),
            "shape": dict(options.shape),
            "role": target.role,
            "device": target.device,
            "extra": dict(target.extra),
            "tolerant": list(target.tolerant),
        },
        "rules": [
            {
                **rule_data(verdict.rule),
                "result": verdict.result,
                "reached": verdict.reached,
                "reason": verdict.reason,
                "known": [
                    {
                        "status": stand.status,
                        "message": stand.message,
                        "fingerprint": stand.known.id,
                        "issue": stand.known.issue,
                    }
                    for stand in checked.stands
                    if stand.known.fingerprint.rule == verdict.rule.id
                ],
                "faults": [
                    {
                        "violation": finding.violation.to_json(),
                        "scenario": finding.scenario.to_json(),
                        "events": [e.to_json() for e in finding.trace or ()],
                        "path": paths.get(finding.violation.fingerprint.id),
                        "runs": finding.runs,
                        "confirmed": finding.confirmed or finding.excused,
                        "excused": finding.excused,
                    }
                    for finding in verdict.findings
                ],
            }
            for verdict in checked.verdict.rules
        ],
        "deaths": [
            terminal.death(death, paths.get(f"death-{index}"))
            for index, death in enumerate(checked.deaths)
        ],
    }


def _allure() -> ModuleType:
    """The module that writes Allure results.

    Raises:
        UsageError: what it needs is not installed.
    """
    try:
        from kvconform.reports import allure
    except ImportError:
        raise UsageError(
            "--allure needs allure-pytest: install it with pip install 'kvconform[allure]'."
        ) from None
    return allure


def store(checked: Checked, folder: Path) -> dict[str, str]:
    """Write the crash files of a check; their paths by fingerprint id, and by ``death-N``."""
    paths: dict[str, str] = {}
    versions = {"kvconform": __version__, "vllm": checked.vllm}
    for finding in checked.findings:
        if finding.scenario.actions or BY_ID[finding.violation.fingerprint.rule].is_static:
            stored = crash.Crash(
                checked.target,
                finding.violation,
                finding.scenario,
                crash.resolved(finding.trace),
                versions,
            )
            paths[finding.violation.fingerprint.id] = str(crash.write(stored, folder))
    for index, death in enumerate(checked.deaths):
        if death.scenario is not None:
            path = crash.write_death(
                checked.target, death.scenario, death.how, death.hook or "process", folder
            )
            paths[f"death-{index}"] = str(path)
    return paths


def write_json(data: dict[str, Any], where: str) -> None:
    """Write a report to a file, or to standard output for ``-``.

    Raises:
        UsageError: the file cannot be written.
    """
    text = json.dumps(data, indent=1) + "\n"
    if where == "-":
        sys.stdout.write(text)
        return
    try:
        Path(where).parent.mkdir(parents=True, exist_ok=True)
        Path(where).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"Cannot write the report to {where}: {error.strerror}.") from None


def _coverage(checked: Checked) -> str:
    """Which fault met requests in which state."""
    found = [dataclasses.asdict(hole) for hole in checked.holes]
    return coverage.table(checked.coverage, PAIRS, sorted(checked.faults), found)


class Ticker:
    """A line of progress, rewritten in place; silent when standard error is not a terminal."""

    PERIOD = 0.5

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._last = 0.0

    def tell(self, progress: Any) -> None:
        """Show how far a check has come."""
        now = time.monotonic()
        if not self._live or now - self._last < self.PERIOD:
            return
        self._last = now
        rate = progress.steps / progress.seconds if progress.seconds else 0.0
        sys.stderr.write(
            f"\r\033[K{progress.phase}: {progress.examples} runs, {rate:.0f} steps/s, "
            f"{progress.findings} findings"
        )
        sys.stderr.flush()

    def clear(self) -> None:
        """Take the line away."""
        if self._live:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()
