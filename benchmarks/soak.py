"""Many seeds of one target, on one vLLM or several, until so many steps were checked.

``python benchmarks/soak.py ascend --steps 1000000 --versions 0.18.0,0.33.0 --json soak.json``

Counted are *checked* steps: those that scheduled a token or carried a connector event. Each check
is of one seed on one vLLM and draws shapes of its own; the releases take turns. With ``--json``
what is done is kept after each check: whoever is interrupted, and be it killed, starts again with
the same command and goes on. Exits with 1 when a check accuses the target, with 2 when a core rule
was reached by none of them, else with 0.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
# A checkout is enough: neither `benchmarks` nor, where nothing is installed, `kvconform` is on the
# path of a script.
sys.path.insert(0, str(ROOT))

Unit = dict[str, Any]
"""What came of one check: vllm, seed, and what :func:`_unit` adds."""


class CheckError(Exception):
    """A check that gave no report."""


def main(argv: list[str] | None = None) -> int:
    """The command."""
    args = _arguments(argv)
    settings = {"target": args.target, "level": args.level, "examples": args.examples}
    versions = [v.strip() for v in args.versions.split(",") if v.strip()] or [""]
    path = Path(args.json) if args.json else None
    try:
        units = _read(path, settings)
    except ValueError as error:
        print(f"soak: {error}", file=sys.stderr)
        return 3
    asked = {u["asked"] for u in units}
    if not asked <= set(versions):
        print(f"going on with {len(units)} checks, also of other releases", file=sys.stderr)
    done = {(u["asked"], u["seed"]) for u in units}
    for version, seed in _turns(versions, args.seed):
        if sum(u["checked"] for u in units) >= args.steps:
            break
        if (version, seed) in done:
            continue
        try:
            units.append(_unit(args, version, seed))
        except CheckError as error:
            print(f"soak: {error}", file=sys.stderr)
            return 4
        print(_line(units[-1], sum(u["checked"] for u in units)), flush=True)
        if path:
            _write(path, settings, units)
    print(_table(units))
    if any(u["accused"] for u in units):
        return 1
    return 2 if any(_never(units, vllm) for vllm in {u["vllm"] for u in units}) else 0


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("target")
    parser.add_argument("--steps", type=int, default=200_000, help="checked steps asked for")
    parser.add_argument(
        "--versions", default="", help="vLLM releases with commas (default: the installed one)"
    )
    parser.add_argument("--seed", type=int, default=1, help="the first seed (default 1)")
    parser.add_argument("--level", default="L3", help="of each check (default L3)")
    parser.add_argument("--examples", type=int, default=200, help="of each check (default 200)")
    parser.add_argument("-n", default="1", dest="processes", help="processes of each check")
    parser.add_argument("--report", default=".kvconform", help="folder for crash files")
    parser.add_argument("--json", help="keeps what is done; a file that is there is gone on with")
    return parser.parse_args(argv)


def _turns(versions: list[str], first: int) -> Iterator[tuple[str, int]]:
    """Each seed on each release, without an end."""
    for seed in itertools.count(first):
        for version in versions:
            yield version, seed


def _unit(args: argparse.Namespace, version: str, seed: int) -> Unit:
    """Make a check in processes of its own; ``""`` is the installed vLLM.

    Raises:
        CheckError: it gave no report.
    """
    start = [sys.executable, "-m", "kvconform"]
    if version:
        start = [os.environ.get("KVC_START") or str(ROOT / "kvc"), "--vllm", version]
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="kvconform-soak-") as folder:
        path = Path(folder) / "report.json"
        done = subprocess.run(
            [
                *start, "check", args.target, "--level", args.level,
                "--examples", str(args.examples), "--seed", str(seed), "-n", args.processes,
                "--report", str(Path(args.report) / version), "--json", str(path),
            ],
            env={**os.environ, "PYTHONPATH": _path()},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if not path.exists():
            said = done.stderr.strip().splitlines()
            raise CheckError(said[-1] if said else f"the check ended with {done.returncode}")
        report = json.loads(path.read_text(encoding="utf-8"))
    failures = [(rule["id"], failure) for rule in report["rules"] for failure in rule["failures"]]
    accused = [
        f"{rule} {failure['fingerprint']} [{failure['side']}] {failure['kind']}"
        for rule, failure in failures
        if rule.startswith("KVC")
    ]
    return {
        "asked": version,
        "vllm": report["tool"]["vllm"],
        "seed": seed,
        "result": report["profiles"][0]["result"],
        "runs": report["run"]["examples"],
        "steps": report["run"]["steps"],
        "checked": report["run"]["checkedSteps"],
        "seconds": round(time.monotonic() - began, 1),
        "accused": accused + [f"{d['how']} in {d['hook']}" for d in report["deaths"]],
        "vllmsOwn": sorted({rule for rule, _ in failures if rule.startswith("VLL")}),
        "vacuous": [
            r["id"] for r in report["rules"]
            if r["result"] == "vacuous" and r["level"] == "must" and r["id"].startswith("KVC")
        ],
        "shapes": report["run"]["shapes"],
    }  # fmt: skip


def _path() -> str:
    """The modules' path for a check: this checkout's first."""
    return os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))


def _read(path: Path | None, settings: Mapping[str, Any]) -> list[Unit]:
    """What an earlier soak of the same kind has done.

    Raises:
        ValueError: the file is of something else.
    """
    if path is None or not path.exists():
        return []
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        same = {name: data[name] for name in settings}
        units: list[Unit] = list(data["checks"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not the file of a soak: {error}.") from None
    if same != settings:
        raise ValueError(f"{path} is of {same}; give another file for {dict(settings)}.")
    return units


def _write(path: Path, settings: Mapping[str, Any], units: list[Unit]) -> None:
    """Write the file anew, whole or not at all."""
    scratch = path.with_name(f"{path.name}.new")
    scratch.write_text(
        json.dumps({"schemaVersion": 1, **settings, "checks": units}, indent=1) + "\n",
        encoding="utf-8",
    )
    scratch.replace(path)


def _never(units: list[Unit], vllm: str) -> list[str]:
    """Core rules that no check on a release has reached."""
    of = [set(u["vacuous"]) for u in units if u["vllm"] == vllm]
    return sorted(set.intersection(*of)) if of else []


def _line(unit: Unit, total: int) -> str:
    head = (
        f"vLLM {unit['vllm']} seed {unit['seed']}: {unit['result']}, {unit['runs']} runs, "
        f"{unit['checked']} checked steps ({total} in all), {unit['seconds']:.0f} s"
    )
    return "\n".join([head, *(f"  ACCUSED  {text}" for text in unit["accused"])])


def _table(units: list[Unit]) -> str:
    """A line for each release, the shapes, and the sum."""
    columns = (
        ("vLLM", 10), ("seeds", 7), ("runs", 9), ("steps", 11), ("checked", 11), ("accused", 9),
        ("vLLM's own", 0),
    )  # fmt: skip
    lines = ["", "".join(f"{name:<{width}}" for name, width in columns).rstrip()]
    shapes: Counter[str] = Counter()
    for vllm in sorted({u["vllm"] for u in units}):
        of = [u for u in units if u["vllm"] == vllm]
        own = sorted({rule for u in of for rule in u["vllmsOwn"]})
        cells = [
            vllm, len(of), *(sum(u[name] for u in of) for name in ("runs", "steps", "checked")),
            sum(len(u["accused"]) for u in of), ", ".join(own) or "-",
        ]  # fmt: skip
        pairs = zip(cells, columns, strict=True)
        lines.append("".join(f"{cell!s:<{width}}" for cell, (_, width) in pairs).rstrip())
        if never := _never(units, vllm):
            lines.append(f"  reached by none of them: {', '.join(never)}")
        for unit in of:
            shapes.update(unit["shapes"])
    lines.append("shapes: " + ", ".join(f"{name} ×{n}" for name, n in sorted(shapes.items())))
    alarms = sum(bool(u["accused"]) for u in units)
    lines.append(
        f"{sum(u['checked'] for u in units)} checked steps in {len(units)} checks, "
        f"{sum(u['seconds'] for u in units):.0f} s; {alarms} of them accuse the target"
    )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
