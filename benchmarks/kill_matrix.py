"""The results of ``kvconform selftest --json FILE``, one file a seed, as a page of Markdown.

python benchmarks/kill_matrix.py FILE… > docs/kill-matrix.md
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from kvconform.connectors.zoo.catalogue import BY_NAME, MUTANTS

_HEAD = """# The kill matrix

Made by `benchmarks/kill_matrix.py` from `kvconform selftest --seed N --json FILE`. For each member
of the zoo: which rule noticed it first, whom it named, CPU seconds until then, and actions of the
shrunk scenario, seed by seed. `!`: no rule that has to notice by what the defect breaks, but
another one. `✗`: it named the other half. Each hunt has 60 s of CPU time; where none is long enough
the mutant lives.
"""

_WITHOUT = """
## Defects without a member of the zoo

Numbers are those of the public defects that the zoo cites.

* Of vLLM's scheduler and runner: B-006, B-009 to B-012, B-015 to B-019, B-022 to B-024, B-028,
  B-030, B-033, B-035, B-037, B-038, B-043, B-047, B-086, B-201. Each rule of what vLLM owes has a
  wrong scheduler; releases that have a defect are shown with it (`tests/rules/test_defects.py`).
* Of several KV groups: B-029 and B-126, blocks that a window lets go too early, for steps run one
  after another here; B-031, B-032, B-048 and B-181, of recurrent states and of zeroing, which are
  not simulated; B-121, of drafts.
* Of streams and devices: B-125, a block that is read before its kernel has run: a forward is done
  when the simulated runner returns. Of layouts: B-068 and B-178, of engines whose ranks or caches
  differ from each other, and of KV that is split in parts. What they need is not simulated yet.
* Of statistics: B-039, a counter that counts something else than its name says: no rule knows.
* Of sleep: B-051. An engine that sleeps discards KV that may still be on its way; what it owes then
  is not settled.
* What the contract allows: B-101, several requests load the same block, each into its own; B-102,
  who shares with a load that is open is told to ask later, for as long as it takes. Both cost time
  alone, and no bound was agreed on.
* B-124, the same block is stored again in every step: it costs room in the store, of which nothing
  is said; that each save is handed out once is judged by its reports. B-196 is B-042 once more.
* B-036, layer hooks without metadata: vLLM 0.11.2 and later do not call them then.
"""


def _cell(hunt: dict[str, Any]) -> str:
    if hunt["right_here"]:
        return "not on this vLLM"
    if not hunt["killed"]:
        return "**lives**"
    marks = ("" if hunt["expected"] else " !") + ("" if hunt["right_side"] else " ✗")
    return f"{hunt['rule']}{marks}, {hunt['seconds']:g} s, {hunt['actions']}"


def page(files: list[dict[str, Any]]) -> str:
    """The page."""
    by_seed = {file["seed"]: {h["name"]: h for h in file["hunts"]} for file in files}
    seeds = sorted(by_seed)
    parts = [_HEAD, "| | " + " | ".join(f"seed {seed}" for seed in seeds) + " |"]
    parts.append("|---|" + "---|" * len(seeds))
    sums: dict[str, list[str]] = {"killed": [], "by a rule that has to notice": [],
                                  "on the right side": [], "median CPU s": [],
                                  "median actions": [], "alarms on what is right": []}  # fmt: skip
    for seed in seeds:
        hunts = [h for h in by_seed[seed].values() if not h["twin"] and not h["right_here"]]
        killed = [h for h in hunts if h["killed"]]
        twins = [h for h in by_seed[seed].values() if h["twin"]]
        sums["killed"].append(f"{len(killed)} of {len(hunts)}")
        sums["by a rule that has to notice"].append(str(sum(h["expected"] for h in killed)))
        sums["on the right side"].append(str(sum(h["right_side"] for h in killed)))
        sums["median CPU s"].append(f"{statistics.median(h['seconds'] for h in killed):.2f}")
        sums["median actions"].append(f"{statistics.median(h['actions'] for h in killed):g}")
        sums["alarms on what is right"].append(
            f"{sum(h['killed'] for h in twins)} in {len(twins)} hunts"
        )
    parts += [f"| {name} | " + " | ".join(cells) + " |" for name, cells in sums.items()]
    parts += ["", "| | from | " + " | ".join(f"seed {seed}" for seed in seeds) + " |"]
    parts.append("|---|---|" + "---|" * len(seeds))
    for mutant in MUTANTS:
        rows = [by_seed[seed].get(mutant.name) for seed in seeds]
        cells = [_cell(row) if row else "" for row in rows]
        parts.append(f"| {mutant.name} | {mutant.bug} | " + " | ".join(cells) + " |")
    alive = sorted(
        {h["name"] for hunts in by_seed.values() for h in hunts.values()
         if not h["twin"] and not h["killed"] and not h["right_here"]}
    )  # fmt: skip
    parts += ["", "## Those that live", ""]
    for name in alive:
        why = BY_NAME[name].rare or "no cause is known"
        parts.append(f"* `{name}`: {BY_NAME[name].says} {why[:1].upper()}{why[1:]}.")
    return "\n".join(parts) + "\n" + _WITHOUT


if __name__ == "__main__":
    print(page([json.loads(Path(name).read_text("utf-8")) for name in sys.argv[1:]]), end="")
