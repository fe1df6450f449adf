"""``kvconform selftest``: hunt the mutants of the zoo, and the right connector with them."""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvconform.cli import options as parse
from kvconform.cli.check import write_json
from kvconform.conformance.invariants import expected
from kvconform.conformance.selftest import SECONDS, Quarry, hunt_all
from kvconform.connectors.targets.resolve import resolve
from kvconform.connectors.zoo.catalogue import BY_NAME, MUTANTS
from kvconform.connectors.zoo.mutant import Mutant
from kvconform.connectors.zoo.sample import SAMPLE
from kvconform.faults.devices import cann
from kvconform.reports.kills import table
from kvconform.scenario.errors import UsageError

SAMPLE_SECONDS = 30.0
"""CPU time of a hunt of the sample: the right ones are hunted for all of it."""


def selftest(options: argparse.Namespace) -> int:
    """Hunt; 0 when every mutant was killed and the right connector was not accused, else 1.

    Raises:
        UsageError: there is no such mutant or shard, or the file is of something else.
    """
    quarries = _quarries(_possible(_chosen(options.mutant, options.shard, options.sample)))
    seconds = SAMPLE_SECONDS if options.sample else SECONDS
    path = Path(options.json) if options.json and options.json != "-" else None
    known = _known(path, options.seed, seconds) if path else {}
    done = [known[q.name] for q in quarries if q.name in known]
    left = [q for q in quarries if q.name not in known]

    def tell(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    hunts = hunt_all(
        left, seed=options.seed, seconds=seconds, processes=parse.processes(options.processes),
        tell=tell,
    )  # fmt: skip
    for hunt in hunts:
        done.append(dataclasses.asdict(hunt) | {"twin": hunt.name.startswith("right")})
        if path:  # who is interrupted goes on from here
            _store(path, options.seed, seconds, done, known)
    order = {quarry.name: index for index, quarry in enumerate(quarries)}
    done.sort(key=lambda entry: order[entry["name"]])
    out = sys.stderr if options.json == "-" else sys.stdout
    print(table(done, {m.name: m.says for m in MUTANTS}), file=out)
    if options.json == "-":
        write_json(_file(options.seed, seconds, done), "-")
    return int(any(entry["killed"] is entry["twin"] for entry in done if not entry["right_here"]))


def _chosen(names: str, shard: str, sample: bool) -> list[Mutant]:
    match = re.fullmatch(r"(\d+)/(\d+)", shard)
    index, count = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1 <= index <= count:
        raise UsageError(f"--shard is I/N such as 1/4, I from 1 to N, got {shard!r}.")
    chosen = [m for m in MUTANTS if not sample or m.name in SAMPLE]
    if names and sample:
        raise UsageError("Give either --mutant or --sample.")
    if names:
        for name in names.split(","):
            if name not in BY_NAME:
                raise UsageError(
                    f"There is no mutant {name!r}: 'kvconform list mutants' shows them all."
                )
        chosen = [BY_NAME[name] for name in names.split(",")]
    return chosen[index - 1 :: count]


def _possible(mutants: list[Mutant]) -> list[Mutant]:
    """Those for which there is a device; who is left out does not count."""
    reason = cann.missing()
    there = [m for m in mutants if m.device == "cpu" or reason is None]
    if len(there) < len(mutants):
        left_out = len(mutants) - len(there)
        print(f"kvconform: mutants of a device, left out: {left_out}. {reason}", file=sys.stderr)
    return there


def _quarries(mutants: Sequence[Mutant]) -> list[Quarry]:
    """The mutants, and the right connector for each set of shapes and packages among them."""
    ascend, multi = resolve("ascend"), resolve("multi")
    quarries: list[Quarry] = []
    twins: dict[str, Quarry] = {}
    for mutant in mutants:
        target = resolve(f"zoo:{mutant.name}")
        quarries.append(
            Quarry(mutant.name, target, expected(mutant.breaks) | {*mutant.rules}, mutant.side,
                   mutant.shape, mutant.faults, mutant.until)
        )  # fmt: skip
        where = ", ".join(
            [*(f"{k}={v}" for k, v in mutant.shape.items()), *mutant.faults,
             *([mutant.device] if mutant.device != "cpu" else ())]
        ) or "any shape"  # fmt: skip
        # What vLLM itself owes is looked at only where a wrong scheduler is.
        right = multi if mutant.children else ascend
        right = dataclasses.replace(right, device=target.device, caches=target.caches)
        own, rules = ("composition" if mutant.children else "connector"), set[str]()
        if mutant.is_scheduler:
            own, rules = "scheduler", {*mutant.rules}
        name = f"right {own}, {where}"
        rules |= twins[name].expected if name in twins else frozenset()
        twins[name] = Quarry(name, right, frozenset(rules), "vLLM" if rules else "",
                             mutant.shape, mutant.faults)  # fmt: skip
    return [*quarries, *twins.values()]


def _file(seed: int, seconds: float, done: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {"schemaVersion": 1, "seed": seed, "seconds": seconds, "hunts": list(done)}


def _store(
    path: Path,
    seed: int,
    seconds: float,
    done: Sequence[dict[str, Any]],
    known: dict[str, dict[str, Any]],
) -> None:
    """Write the file anew, whole or not at all; other mutants that were in it stay."""
    merged = known | {entry["name"]: entry for entry in done}
    scratch = path.with_name(f"{path.name}.new")
    scratch.write_text(json.dumps(_file(seed, seconds, list(merged.values())), indent=1) + "\n")
    scratch.replace(path)


def _known(path: Path, seed: int, seconds: float) -> dict[str, dict[str, Any]]:
    """What an earlier selftest with this seed, and as much time, has found out."""
    if not path.exists():
        return {}
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["seed"] != seed:
            raise UsageError(f"{path} is of seed {data['seed']}; give another file for {seed}.")
        if data.get("seconds", SECONDS) != seconds:
            raise UsageError(
                f"{path} is of hunts of {data.get('seconds', SECONDS):g} s; give another file for "
                f"those of {seconds:g} s, as --sample has them or has not."
            )
        return {entry["name"]: entry for entry in data["hunts"]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} is not the file of a selftest: {error}.") from None
