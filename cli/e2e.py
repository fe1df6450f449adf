"""``kvconform e2e``: a connector on real engines."""

from __future__ import annotations

import argparse
import dataclasses
import shlex
import sys
from pathlib import Path

from kvconform import __version__
from kvconform.cli.check import write_json
from kvconform.conformance.real.outcome import as_data, exit_code
from kvconform.conformance.real.run import FULL, SMALL, play, restricted
from kvconform.connectors.targets import deployments
from kvconform.connectors.targets.resolve import json_object, resolve, with_flags
from kvconform.engine.installed import require_vllm
from kvconform.reports.real import table
from kvconform.scenario.deployment import Deployment
from kvconform.scenario.errors import UsageError

_WORD = {
    0: "CONFORMANT  every request ended as without a connector, and no block stayed behind",
    1: "FAILED  see above; 'kvconform explain RULE' has more on each rule",
    2: "INCONCLUSIVE  nothing was found, and not everything was put to the test",
    5: "KILLED  the target ended or hung an engine's process",
}


def e2e(options: argparse.Namespace, line: list[str]) -> int:
    """Play the scenes of a target on real engines; prints the table.

    Raises:
        UsageError: there is no such target, or it cannot run here.
    """
    deployment = _deployment(options)
    topologies = deployments.in_topology(deployment, options.topology)
    size = restricted(SMALL if options.small else FULL, options.requests, options.scenes)
    require_vllm()
    from kvconform.engine.compat import vllm_version

    outcomes = play(
        deployment,
        topologies,
        size,
        options.seed,
        tell=lambda what: print(f"{what} …", file=sys.stderr, flush=True),
        keep=Path(options.logs) if options.logs else None,
    )
    code = exit_code(outcomes)
    out = sys.stderr if options.json == "-" else sys.stdout
    title = f"{deployment.name} ({deployment.cls})"
    print(table(title, as_data(outcomes), vllm_version()), file=out)
    print(f"\n{_WORD[code]}", file=out)
    if options.json:
        report = {
            "schemaVersion": 1,
            "tool": {"version": __version__, "vllm": vllm_version()},
            "target": {"name": deployment.name, "class": deployment.cls},
            "run": {"seed": options.seed, "command": shlex.join(line)},
            "exit": code,
            "scenes": as_data(outcomes),
        }
        write_json(report, options.json)
    return code


def _deployment(options: argparse.Namespace) -> Deployment:
    """The known deployment of the name, or one made of a target; flags override."""
    known = deployments.known(options.target)
    if known is None:
        target = with_flags(resolve(options.target), role=options.role, extra=options.extra)
        deployment = deployments.of(target)
        require_vllm()
        from kvconform.conformance import static

        static.load(target)  # a sentence here is better than a traceback in an engine's log
        return deployment
    if options.role is not None:
        raise UsageError(f"--role is for a bare class; the roles of {known.name} are known.")
    extra = json_object(options.extra) if options.extra is not None else {}
    return dataclasses.replace(known, extra={**known.extra, **extra})
