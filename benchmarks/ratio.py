"""What a fully checked step costs in bare ones: ``python benchmarks/ratio.py [--json]``.

Exits with 0 when no ratio at 6 live requests is above the goal, with 1 otherwise.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

# A checkout is enough: neither `benchmarks` nor, where nothing is installed, `kvconform` is on the
# path of a script.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from kvconform.engine import logs
from kvconform.engine.installed import require_vllm


def text(result: dict[str, Any]) -> str:
    """The result for readers."""
    lines = [f"At {result['live']} live requests, bare and checked with the same connector:"]
    for name, r in result["connectors"].items():
        lines.append(
            f"  {name:8} bare {r['bare_ms']:.2f} ms, checked {r['checked_ms']:.2f} ms: "
            f"ratio {r['ratio']:.2f} (goal: at most {result['goal']})"
        )
    lines.append("Steps per second (idle), and what a step costs per scheduled request:")
    for live, r in result["sizes"].items():
        bare, checked = r["bare_ms"], r["checked_ms"]
        lines.append(
            f"  {live:3} live: bare {1e3 / bare:5.0f}, checked {1e3 / checked:5.0f} steps/s; "
            f"bare {1e3 * bare / live:4.0f}, checked {1e3 * checked / live:4.0f} µs/request; "
            f"ratio {r['ratio']:.2f}"
        )
    more = result["us_per_further_request"]
    lines.append(
        f"  each further request: bare {more['bare']:.0f} µs, checked {more['checked']:.0f} µs"
    )
    lines.append("Growth of the ratio where there should be none (1.00):")
    lines += [f"  {what}: {factor:.2f}" for what, factor in result["growth"].items()]
    return "\n".join(lines)


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--rounds", type=int, default=9, help="rounds that medians are taken over")
    parser.add_argument("--steps", type=int, default=200, help="steps per round")
    args = parser.parse_args()
    require_vllm()
    from benchmarks.measure import measure_all  # imports vLLM, which takes seconds

    logs.capture(None)  # vLLM has much to say about a model that is not there
    result = measure_all(args.rounds, args.steps)
    print(json.dumps(result, indent=2) if args.json else text(result))
    return 0 if result["ratio"] <= result["goal"] else 1


if __name__ == "__main__":
    sys.exit(main())
