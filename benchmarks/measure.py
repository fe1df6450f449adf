"""What a fully checked step costs in bare ones: both loops, the same load, in turns.

Both loops have the same connector in them, so that the connector's own work counts on both sides.
"""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable, Sequence
from statistics import fmean, median
from typing import Any

from benchmarks.load import Load, Timed, bare, checked, interleaved, make_load
from kvconform.connectors.targets.resolve import resolve
from kvconform.scenario.target import Target

GOAL = 2.0
LIVE = 6
SIZES = (8, 64, 256)
LONG = 2000
POOL = 16384

IDLE = Target("idle", "benchmarks.idle:Idle")
ASCEND = resolve("ascend")

_stores = itertools.count()


def alone(target: Target, store_blocks: int) -> Target:
    """The target without a world: the reference connector then makes its store for itself."""
    if target.world == "plain":
        return target
    extra = {"store": f"bare{next(_stores)}", "capacity_blocks": store_blocks}
    return Target(target.name, target.cls, extra=extra)


def sides(target: Target, load: Load) -> dict[str, Callable[[], Timed]]:
    """Both loops."""
    return {
        f"{target.name} bare": lambda: bare(alone(target, load.shape.store_blocks), load),
        f"{target.name} checked": lambda: checked(target, load),
    }


def measure(load: Load, targets: Sequence[Target], rounds: int) -> dict[str, dict[str, float]]:
    """Per connector: bare and checked steps in ms, and their ratio; medians over the rounds."""
    loops = {k: v for target in targets for k, v in sides(target, load).items()}
    seen: list[dict[str, float]] = []
    for _ in range(rounds):
        gc.collect()  # no round pays for the one before it
        seen.append({name: 1e3 * fmean(steps) for name, steps in interleaved(loops).items()})
    return {
        t.name: {
            "bare_ms": median(r[f"{t.name} bare"] for r in seen),
            "checked_ms": median(r[f"{t.name} checked"] for r in seen),
            "ratio": median(r[f"{t.name} checked"] / r[f"{t.name} bare"] for r in seen),
        }
        for t in targets
    }


def growth_with_trace() -> float:
    """Cost of a long run's last tenth in that of its first, each in bare steps of the same time."""
    gc.collect()
    steps = interleaved(sides(IDLE, make_load(IDLE, LIVE, LONG)))
    tenth = LONG // 10
    plain, watched = steps["idle bare"], steps["idle checked"]
    first = sum(watched[:tenth]) / sum(plain[:tenth])
    return sum(watched[-tenth:]) / sum(plain[-tenth:]) / first


def measure_all(rounds: int, steps: int) -> dict[str, Any]:
    """All that is printed."""
    load = make_load(IDLE, LIVE, steps)
    ratios = measure(load, (IDLE, ASCEND), rounds)
    wide = measure(load.with_pool(POOL), (IDLE,), 3)["idle"]
    sizes = {live: measure(make_load(IDLE, live, 48), (IDLE,), 3)["idle"] for live in SIZES}
    first, last = SIZES[0], SIZES[-1]
    return {
        "goal": GOAL,
        "ratio": max(r["ratio"] for r in ratios.values()),
        "live": LIVE,
        "connectors": ratios,
        "sizes": sizes,
        "us_per_further_request": {
            side: 1e3 * (sizes[last][f"{side}_ms"] - sizes[first][f"{side}_ms"]) / (last - first)
            for side in ("bare", "checked")
        },
        "growth": {
            f"pool of {POOL} blocks instead of {load.shape.num_blocks}": wide["ratio"]
            / ratios["idle"]["ratio"],
            f"after {LONG} steps": growth_with_trace(),
        },
    }
