"""``kvconform matrix``: a check on every vLLM release, and one table."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from kvconform.cli.check import write_json
from kvconform.conformance.verdict import (
    EXIT_FAILED,
    EXIT_HARNESS,
    EXIT_INCONCLUSIVE,
    EXIT_KILLED,
    EXIT_OK,
    EXIT_USAGE,
)
from kvconform.connectors.targets.known import KNOWN
from kvconform.connectors.targets.resolve import resolve
from kvconform.reports import crash
from kvconform.reports.matrix import table
from kvconform.scenario.errors import UsageError
from kvconform.scenario.releases import RELEASES, release, within
from kvconform.scenario.target import Target

_WORST = (EXIT_KILLED, EXIT_FAILED, EXIT_HARNESS, EXIT_USAGE, EXIT_INCONCLUSIVE, EXIT_OK)
"""The exit code of a matrix is the first of these that a release which counts has."""


def matrix(options: argparse.Namespace) -> int:
    """Check targets on vLLM releases; releases that a target does not claim do not count.

    Raises:
        UsageError: there is no such target or release, or nothing to run other releases with.
    """
    if bool(options.targets) is options.all:
        raise UsageError("matrix needs either targets or --all.")
    names = options.targets
    if options.all:  # those that may be right
        names = [t.name for t in KNOWN if not t.name.startswith("zoo:")]
    targets = [(name, resolve(name)) for name in names]
    versions = _versions(options.versions)
    crash.make_folder(Path(options.report))
    columns: dict[str, list[dict[str, Any]]] = {}
    out = sys.stderr if options.json == "-" else sys.stdout
    for name, target in targets:
        columns[name] = [_column(name, target, version, options) for version in versions]
        print(table(name, columns[name]), file=out, flush=True)
    if options.json:
        write_json({"schemaVersion": 1, "matrix": columns}, options.json)
    codes = {c["exit"] for of_target in columns.values() for c in of_target if c["claimed"]}
    return next((code for code in _WORST if code in codes), EXIT_OK)


def _versions(text: str) -> list[str]:
    """The releases asked for; by default all, or the one that ``./kvc --vllm`` names."""
    own = os.environ.get("KVC_VLLM")
    if not os.environ.get("KVC_START"):
        if text:
            raise UsageError("--versions works with ./kvc only, which makes the environments.")
        return [""]
    if not text:
        return [own] if own else list(RELEASES)
    versions = [v.strip() for v in text.split(",") if v.strip()]
    for version in versions:
        if not release(version):
            raise UsageError(f"--versions are releases such as 0.18.0,0.32.0, got {version!r}.")
    return versions


def _column(name: str, target: Target, version: str, options: argparse.Namespace) -> dict[str, Any]:
    """A check in a process of its own; ``""`` is the installed vLLM."""
    start = [sys.executable, "-m", "kvconform"]
    if version:
        start = [os.environ["KVC_START"], "--vllm", version]
    print(f"{name} on vLLM {version or 'as installed'} …", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(prefix="kvconform-matrix-") as folder:
        report = Path(folder) / "report.json"
        done = subprocess.run(
            [
                *start, "check", name, "--level", options.level,
                "--examples", str(options.examples), "--seed", str(options.seed),
                "-n", options.processes, "--report", str(Path(options.report) / version),
                "--json", str(report), "--tolerant", options.tolerant,
                *(("--known", options.known) if options.known else ()),
            ],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        said = done.stderr.strip().splitlines()
        data = json.loads(report.read_text(encoding="utf-8")) if report.exists() else None
    vllm = version or (data["tool"]["vllm"] if data else "installed")
    return {
        "vllm": vllm,
        "claimed": within(vllm, target.since, target.until),
        "exit": done.returncode,
        "message": "" if data else (said[-1] if said else "no report"),
        "rules": data["rules"] if data else [],
    }
