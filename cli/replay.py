"""``kvconform replay``."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

from kvconform.cli import options as parse
from kvconform.conformance.pool import Pool
from kvconform.conformance.rules import find, rule_data
from kvconform.conformance.units import Job, Unit
from kvconform.conformance.verdict import EXIT_HARNESS, EXIT_KILLED
from kvconform.connectors.targets.resolve import resolve
from kvconform.reports import crash, terminal
from kvconform.reports.as_test import as_test
from kvconform.scenario.errors import UsageError

REPRODUCED, FIXED = 1, 0


def replay(options: argparse.Namespace) -> int:
    """Play a crash file; 0 when nothing is wrong any more, 1 when a rule is broken.

    Raises:
        UsageError: the file cannot be used.
    """
    folder = Path(crash.FOLDER)
    stored = crash.read(crash.locate(options.crash, folder))
    target = resolve(options.against) if options.against else stored.target
    if options.as_test:
        if find(stored.violation.fingerprint.rule).is_static:
            raise UsageError(f"{stored.id} is shown by the class itself: there is nothing to run.")
        print(as_test(dataclasses.replace(stored, target=target)), end="")
        return 0

    rule = find(stored.violation.fingerprint.rule)
    wanted = stored.violation.fingerprint
    unit = Unit("play", "replay", scenario=stored.scenario.to_json(), fingerprint=wanted)
    limits = parse.limits(options.hang_limit, options.memory_limit)
    with Pool(1, limits, device=target.device) as pool:
        (done,) = pool.map([Job(target, unit)])
    if done.death is not None:
        print(terminal.death(done.death, None))
        return EXIT_KILLED
    assert done.result is not None
    if done.result.refused:
        raise UsageError(next(iter(done.result.refused)))
    if not done.result.found:
        what = f"{target.name}: no rule is broken"
        print(f"PASSED  {what}" if options.against else f"FIXED  {rule.id}: {what} any more")
        return FIXED
    (again,) = done.result.found
    violation = again.violation
    if not again.confirmed:
        print(f"NONDETERMINISTIC  {target.name}: two replays of the scenario ended differently")
        return EXIT_HARNESS
    found = find(violation.fingerprint.rule)
    print(terminal.fault(violation, again.scenario, again.trace(), rule_data(found)))
    if options.against:
        word = f"FAILED  {target.name} breaks {found.id}"
    elif violation == stored.violation:
        word = f"REPRODUCED  {rule.id}, exactly as stored"
    elif violation.fingerprint == wanted:
        word = f"REPRODUCED  {rule.id}, the same fault with other details"
    else:
        word = f"DIFFERENT  {found.id} is broken now, {rule.id} was stored"
    print(f"\n{word}")
    if violation.fingerprint.side == "vLLM":
        print("notice: this is vLLM's own fault, not the connector's")
        return FIXED if options.against else REPRODUCED
    return REPRODUCED
