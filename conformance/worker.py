"""The process in which a target lives: takes jobs as JSON lines, answers with JSON lines.

Answers go to a descriptor of their own, so that whatever the target prints cannot get between
them. Started by ``pool``; not meant to be started by hand.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, cast

from kvconform.conformance.blackbox import BlackBox
from kvconform.conformance.units import Job, Result
from kvconform.faults import devices
from kvconform.scenario.errors import HarnessError, UsageError
from kvconform.scenario.target import Device

PERIOD = 0.3
"""Seconds between two words of progress."""


def main(answers: int, folder: Path, device: Device) -> int:
    """Do jobs until standard input ends.

    Args:
        answers: descriptor to write answers to.
        folder: for the black box and the stacks.
        device: what targets may need.
    """
    stacks = (folder / "stacks.txt").open("w")
    faulthandler.enable(stacks)
    faulthandler.register(signal.SIGUSR1, stacks, all_threads=True)
    box = BlackBox(folder / "blackbox")
    with os.fdopen(answers, "w", encoding="utf-8") as out:

        def say(**what: Any) -> None:
            out.write(json.dumps(what) + "\n")
            out.flush()

        try:
            _prepare(box, device)
        except UsageError as error:
            say(usage=str(error))
            return 0
        from kvconform.conformance.work import do  # it brings vLLM along

        say(ready=True)
        for line in sys.stdin:
            job = Job.from_json(json.loads(line))
            last = 0.0

            def tell(result: Result) -> None:
                nonlocal last
                now = time.monotonic()
                if now - last > PERIOD:
                    last = now
                    say(progress=[result.examples, result.steps, len(result.found)])

            try:
                say(result=do(job, tell).to_json())
            except UsageError as error:
                say(usage=str(error))
            except HarnessError as error:
                say(harness=str(error))
            except Exception as error:
                import traceback

                traceback.print_exc()
                frame = traceback.extract_tb(error.__traceback__)[-1]
                say(
                    harness=f"kvconform itself failed in {frame.name}, line {frame.lineno} of "
                    f"{Path(frame.filename).name}: {type(error).__name__}: {error}"
                )
            box.scenario(None)
    return 0


def _prepare(box: BlackBox, device: Device) -> None:
    """Import vLLM, on this device, and let the black box watch."""
    from kvconform.engine.installed import require_vllm

    devices.prepare(device)
    require_vllm()
    from kvconform.conformance import run
    from kvconform.engine import recorder

    recorder.watcher = box.hook
    run.watcher = box.scenario


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), Path(sys.argv[2]), cast(Device, sys.argv[3])))
