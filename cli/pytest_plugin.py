"""The pytest plugin: options ``--kvc-…``, and one check per session for the suite.

The check runs in the controller, before xdist hands out tests, in as many processes as there are
xdist workers; its verdict goes to the workers as data. Without ``--kvc-target`` the plugin does
nothing and imports nothing.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

_VERDICT = pytest.StashKey[dict[str, Any]]()
_INPUT = "kvc_verdict"


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options, all with the prefix ``--kvc-``."""
    group = parser.getgroup("kvconform", "conformance of KV connectors")
    group.addoption("--kvc-target", metavar="TARGET", help="connector to check")
    group.addoption("--kvc-profile", help="profile to hold it to")
    group.addoption("--kvc-level", default="L3", help="L0, L1, L2 or L3 (default L3)")
    group.addoption("--kvc-faults", default="all", help="fault packages (default all)")
    group.addoption("--kvc-shape", default="", help="fixed fields of the shape")
    group.addoption("--kvc-examples", type=int, default=200, help="runs of L3 (default 200)")
    group.addoption("--kvc-seed", type=int, default=1, help="seed (default 1)")
    group.addoption("--kvc-budget", help="time for exploring: 90s, 5m, 1h")
    group.addoption("--kvc-role", help="kv_role of a bare class")
    group.addoption("--kvc-extra", help="kv_connector_extra_config of a bare class, as JSON")
    group.addoption("--kvc-report", default=".kvconform", help="folder for crash files")


def pytest_report_header(config: pytest.Config) -> str | None:
    """Which target is checked, and how."""
    target = config.getoption("--kvc-target")
    if target is None:
        return None
    level, seed = config.getoption("--kvc-level"), config.getoption("--kvc-seed")
    return f"kvconform: target {target}, level {level}, seed {seed}"


def pytest_sessionstart(session: pytest.Session) -> None:
    """Check the target once, unless this is an xdist worker, which is told the verdict."""
    config = session.config
    told = getattr(config, "workerinput", {}).get(_INPUT)
    if told is not None:
        config.stash[_VERDICT] = json.loads(told)
    elif config.getoption("--kvc-target") and not config.getoption("collectonly"):
        config.stash[_VERDICT] = _check(config)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell an xdist worker the verdict."""
    verdict = node.config.stash.get(_VERDICT, None)
    if verdict is not None:
        node.workerinput[_INPUT] = json.dumps(verdict)


@pytest.fixture(scope="session")
def kvc_verdict(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The verdict on the target that ``--kvc-target`` names."""
    verdict = request.config.stash.get(_VERDICT, None)
    if verdict is None:
        raise pytest.UsageError("the suite needs --kvc-target=TARGET")
    return verdict


def _check(config: pytest.Config) -> dict[str, Any]:
    from kvconform.cli import options as parse
    from kvconform.cli.check import store
    from kvconform.conformance.check import LEVELS, Options, check_connector
    from kvconform.conformance.report import rule_data, rules_data
    from kvconform.connectors.targets.resolve import resolve, with_flags
    from kvconform.faults.packages import select
    from kvconform.reports import terminal
    from kvconform.scenario.errors import HarnessError, UsageError

    option = config.getoption
    try:
        target = with_flags(
            resolve(option("--kvc-target")),
            role=option("--kvc-role"),
            extra=option("--kvc-extra"),
        )
        budget = option("--kvc-budget")
        checked = check_connector(
            target,
            Options(
                level=parse.level(option("--kvc-level"), LEVELS),
                profile=option("--kvc-profile"),
                faults=select(option("--kvc-faults")),
                shape=parse.shape(option("--kvc-shape")),
                examples=option("--kvc-examples"),
                seed=option("--kvc-seed"),
                budget=parse.seconds(budget, "--kvc-budget") if budget else None,
                processes=option("numprocesses", None) or 1,
            ),
        )
    except (UsageError, HarnessError) as error:
        raise pytest.UsageError(f"kvconform: {error}") from None
    paths = store(checked, Path(option("--kvc-report")))
    faults = {
        verdict.rule.id: [
            terminal.fault(
                f.violation,
                f.scenario,
                f.trace,
                rule_data(verdict.rule),
                paths.get(f.violation.fingerprint.id),
                f.runs,
            )
            for f in verdict.findings
        ]
        for verdict in checked.verdict.rules
    }
    return {
        "rules": {r["id"]: r | {"faults": faults[r["id"]]} for r in rules_data(checked, paths)},
        "deaths": [
            terminal.death(d, paths.get(f"death-{i}")) for i, d in enumerate(checked.deaths)
        ],
    }
