"""The pytest plugin: options ``--kvc-…``, and a check for the suite and for each class of it.

The suite's check runs in the controller, before xdist hands out tests, in as many processes as
there are xdist workers; its verdict goes to the workers as data. The check of a class runs in the
worker that needs it first, and the others read what came of it. A run that uses neither imports
nothing of ours.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import warnings
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from kvconform.conformance.check import Options
    from kvconform.conformance.suite.wanted import Wanted
    from kvconform.reports.outcome import Case
    from kvconform.scenario.target import Target

Verdict = dict[str, Any]
"""A check as JSON data (see ``reports/outcome.py``)."""

_VERDICT = pytest.StashKey[Verdict]()
_SEEN = pytest.StashKey[dict[str, Verdict]]()
_INPUT = "kvc_verdict"


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options, all with the prefix ``--kvc-``."""
    group = parser.getgroup("kvconform", "conformance of KV connectors")
    group.addoption("--kvc-target", metavar="TARGET", help="connector to check")
    group.addoption("--kvc-profile", help="profile to hold it to")
    group.addoption("--kvc-level", default="L3", help="L0 to L4 (default L3)")
    group.addoption("--kvc-faults", default="all", help="fault packages (default all)")
    group.addoption("--kvc-shape", default="", help="fixed fields of the shape")
    group.addoption("--kvc-examples", type=int, default=200, help="runs of L3 (default 200)")
    group.addoption("--kvc-seed", type=int, default=1, help="seed (default 1)")
    group.addoption("--kvc-budget", help="time for exploring: 90s, 5m, 1h")
    group.addoption("--kvc-role", help="kv_role of a bare class")
    group.addoption("--kvc-extra", help="kv_connector_extra_config of a bare class, as JSON")
    group.addoption("--kvc-known", metavar="FILE", help="known failures")
    group.addoption("--kvc-tolerant", default="", metavar="RULES", help="read these tolerantly")
    group.addoption("--kvc-device", metavar="DEVICE", help="what KV lies on: cpu or ascend-sim")
    group.addoption("--kvc-report", default=".kvconform", help="folder for crash files")


def pytest_report_header(config: pytest.Config) -> str | None:
    """Which target is checked, and how."""
    target = config.getoption("--kvc-target")
    if target is None:
        return None
    level, seed = config.getoption("--kvc-level"), config.getoption("--kvc-seed")
    return f"kvconform: target {target}, level {level}, seed {seed}"


# -- the suite ------------------------------------------------------------------------------------


def pytest_sessionstart(session: pytest.Session) -> None:
    """Check the target once, unless this is an xdist worker, which is told the verdict."""
    config = session.config
    told = getattr(config, "workerinput", {}).get(_INPUT)
    if told is not None:
        config.stash[_VERDICT] = json.loads(told)
    elif config.getoption("--kvc-target") and not config.getoption("collectonly"):
        from kvconform.scenario.errors import HarnessError, UsageError

        try:
            config.stash[_VERDICT] = _check(_asked(config), config)
        except (UsageError, HarnessError) as error:
            raise pytest.UsageError(f"kvconform: {error}") from None


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell an xdist worker the verdict."""
    verdict = node.config.stash.get(_VERDICT, None)
    if verdict is not None:
        node.workerinput[_INPUT] = json.dumps(verdict)


def _asked(config: pytest.Config) -> Wanted:
    from kvconform.conformance.suite.wanted import Wanted

    names = ("target", "profile", "level", "faults", "shape", "examples", "seed", "budget")
    more = ("role", "extra", "known", "tolerant", "device")
    options = {name: config.getoption(f"--kvc-{name}") for name in (*names, *more)}
    return Wanted(**options, processes=config.getoption("numprocesses", None) or 1)


# -- classes --------------------------------------------------------------------------------------


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Say once, at collection, what keeps a check from being made."""
    from_us = "kvc_verdict" in metafunc.fixturenames
    if not from_us or metafunc.config.getoption("collectonly"):
        return
    problem = _problem(metafunc.cls, metafunc.config)
    if problem is not None:
        raise pytest.Collector.CollectError(f"kvconform: {problem}")


def _problem(cls: type | None, config: pytest.Config) -> str | None:
    from kvconform.engine.installed import require_vllm
    from kvconform.scenario.errors import UsageError

    wanted = _wanted(cls, config)
    if wanted is None:
        told = _VERDICT in config.stash
        return None if told else "the suite needs --kvc-target=TARGET"
    if not wanted.target:
        assert cls is not None
        return f'{cls.__name__} needs a target, such as target = "package.module:Class".'
    try:
        if importlib.util.find_spec("vllm") is None:  # importing it takes seconds
            require_vllm()
        _plan(wanted)
    except UsageError as error:
        assert cls is not None
        return f"{cls.__name__}: {error}"
    return None


def _wanted(cls: type | None, config: pytest.Config) -> Wanted | None:
    """The check that a class of tests asks for; None where it is the suite's."""
    from kvconform.conformance.suite.connector import ConnectorConformance, wanted

    if cls is None or not issubclass(cls, ConnectorConformance):
        return None
    return wanted(cls, getattr(config, "workerinput", {}).get("workercount", 1))


@pytest.fixture(scope="class")
def kvc_verdict(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Verdict:
    """The verdict on the target of this class, or on the one that ``--kvc-target`` names."""
    config = request.config
    wanted = _wanted(request.cls, config)
    if wanted is None:
        return _warned(config.stash[_VERDICT])
    from kvconform.conformance.suite.once import once
    from kvconform.scenario.errors import HarnessError, UsageError

    folder = tmp_path_factory.getbasetemp()
    if hasattr(config, "workerinput"):
        folder = folder.parent  # which all workers of this run share
    path = folder / "kvconform" / f"{wanted.key}.json"
    verdict, problem = None, ""
    try:
        verdict = once(path, lambda: _check(wanted, config))
    except (UsageError, HarnessError) as error:
        problem = f"kvconform: {error}"
    if verdict is None:
        pytest.fail(problem, pytrace=False)  # out here, where pytest shows the sentence alone
    config.stash.setdefault(_SEEN, {})[wanted.key] = verdict
    return _warned(verdict)


def _warned(verdict: Verdict) -> Verdict:
    """The verdict, once what has become of known failures was said, which no test tells."""
    from kvconform.conformance.suite.found import KnownFailureWarning

    for rule in verdict["rules"]:
        for known in rule["known"]:
            if known["status"] != "known":
                warnings.warn(known["message"], KnownFailureWarning, stacklevel=2)
    return verdict


@pytest.fixture
def kvc_found(request: pytest.FixtureRequest, kvc_verdict: Verdict) -> Case:
    """The verdict on the rule of this test; on the target's process where it has no rule."""
    from kvconform.reports.outcome import process_case, rule_case

    callspec = getattr(request.node, "callspec", None)
    if callspec is None:
        return process_case(kvc_verdict["deaths"])
    rule = callspec.params["rule"]
    return rule_case(next(r for r in kvc_verdict["rules"] if r["id"] == rule))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Where a rule was not put to the test, show why, and not the line that says so."""
    report = yield
    if call.excinfo is not None and "kvc_found" in getattr(item, "fixturenames", ()):
        from kvconform.conformance.suite.found import Unproven

        if isinstance(call.excinfo.value, Unproven):
            report.longrepr = str(call.excinfo.value)
    return report


# -- Allure ---------------------------------------------------------------------------------------


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Tell Allure, where it listens, which rule a test is about and what was found."""
    known: dict[str, Any] = pyfuncitem.funcargs
    if _allure_folder(pyfuncitem.config) and "kvc_found" in known:
        from kvconform.reports import allure

        allure.tell(known["kvc_found"], known["kvc_verdict"])
    return (yield)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write what Allure shows beside the results."""
    config = session.config
    folder = _allure_folder(config)
    checks = list(config.stash.get(_SEEN, {}).values())
    if _VERDICT in config.stash:
        checks.append(config.stash[_VERDICT])
    if folder and checks:
        from kvconform.reports import allure

        allure.accompany(checks, Path(folder))


def _allure_folder(config: pytest.Config) -> str | None:
    """Where allure-pytest writes results; None when it is not installed or not asked."""
    folder: str | None = config.getoption("allure_report_dir", None)
    return folder or None


# -- the check ------------------------------------------------------------------------------------


def _plan(wanted: Wanted) -> tuple[Target, Options]:
    """Target and options of a check.

    Raises:
        UsageError: one of them is wrong.
    """
    from kvconform.cli import options as parse
    from kvconform.conformance.check import LEVELS, Options
    from kvconform.conformance.profiles import find as find_profile
    from kvconform.conformance.rules import tolerated
    from kvconform.connectors.targets.resolve import resolve, with_flags
    from kvconform.faults.packages import select
    from kvconform.reports import known
    from kvconform.scenario.errors import UsageError

    if wanted.examples < 1:
        raise UsageError(f"The number of examples must be at least 1, got {wanted.examples}.")
    if wanted.profile is not None:
        find_profile(wanted.profile)
    target = with_flags(
        resolve(wanted.target), role=wanted.role, extra=wanted.extra, tolerant=wanted.tolerant,
        device=wanted.device,
    )  # fmt: skip
    tolerated(target.tolerant)
    return target, Options(
        level=parse.level(wanted.level, LEVELS),
        profile=wanted.profile,
        faults=select(wanted.faults),
        shape=parse.shape(wanted.shape),
        examples=wanted.examples,
        seed=wanted.seed,
        budget=parse.seconds(wanted.budget, "--kvc-budget") if wanted.budget else None,
        processes=max(1, wanted.processes),
        known=known.read(Path(wanted.known)) if wanted.known else (),
    )


def _check(wanted: Wanted, config: pytest.Config) -> Verdict:
    """Make a check.

    Raises:
        UsageError: the target cannot be loaded, or an option is wrong.
        HarnessError: kvconform itself failed.
    """
    from kvconform.cli.check import as_data, store
    from kvconform.conformance.check import check_connector

    target, options = _plan(wanted)
    with pytest.MonkeyPatch.context() as patch:
        # What pytest can import, the target's processes can too.
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
        checked = check_connector(target, options)
    return as_data(checked, store(checked, Path(config.getoption("--kvc-report"))))
