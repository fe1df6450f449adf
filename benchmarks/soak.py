"""Many seeds of one target, and what all of them say together.

``python benchmarks/soak.py ascend`` counts *checked* steps: those that scheduled a token or carried
a connector event. Exits with 0 when no seed accuses the target, no core rule is vacuous, and the
steps asked for were reached.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

# A checkout is enough: neither `benchmarks` nor, where nothing is installed, `kvconform` is on the
# path of a script.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from kvconform.conformance.check import Options, check_connector
from kvconform.conformance.verdict import is_core
from kvconform.connectors.targets.resolve import resolve


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("target")
    parser.add_argument("--seeds", default="1-20", help="first and last seed (default 1-20)")
    parser.add_argument("--steps", type=int, default=200_000, help="checked steps asked for")
    parser.add_argument("--examples", type=int, default=200, help="runs of L3 per seed")
    parser.add_argument("-n", type=int, default=1, dest="processes", help="processes")
    args = parser.parse_args()
    first, _, last = args.seeds.partition("-")
    target = resolve(args.target)
    steps, shapes, accused = 0, Counter[str](), 0
    began = time.monotonic()
    for seed in range(int(first), int(last or first) + 1):
        options = Options(seed=seed, examples=args.examples, processes=args.processes)
        checked = check_connector(target, options)
        steps += checked.progress.checked_steps
        shapes.update(checked.shapes)
        own = [f for f in checked.findings if f.violation.fingerprint.rule.startswith("KVC")]
        bad = bool(own or checked.deaths or checked.verdict.vacuous)
        accused += bad
        vllm = sorted(
            {v.rule.id for v in checked.verdict.rules if v.findings and not is_core(v.rule)}
        )
        print(
            f"seed {seed}: {checked.verdict.result}, {checked.progress.examples} runs, "
            f"{checked.progress.checked_steps} checked steps, vLLM's own: {', '.join(vllm) or '-'}"
            + "".join(f"\n  {f.violation.fingerprint}" for f in own)
            + (
                f"\n  vacuous: {', '.join(checked.verdict.vacuous)}"
                if checked.verdict.vacuous
                else ""
            ),
            flush=True,
        )
    print("shapes:", ", ".join(f"{name} ×{count}" for name, count in sorted(shapes.items())))
    print(f"{steps} checked steps in {time.monotonic() - began:.0f} s, {accused} seeds with alarms")
    return 0 if not accused and steps >= args.steps else 1


if __name__ == "__main__":
    sys.exit(main())
