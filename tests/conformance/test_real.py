"""The parts that real engines are judged with; and, slow, the engines themselves."""

from __future__ import annotations

import json
import os
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from kvconform.cli.main import main
from kvconform.conformance.real.environment import (
    BLOCK,
    LONGEST,
    OPTIONS,
    environment,
    require_kernels,
    require_parts,
)
from kvconform.conformance.real.model import SWAP, VOCABULARY, make_model, swapped
from kvconform.conformance.real.outcome import RULES, Finding, Outcome, as_data, exit_code
from kvconform.conformance.real.plain import ANSWER, Answer
from kvconform.conformance.real.process import EngineProcess, GoneError, last_exception, until
from kvconform.conformance.real.prompts import FAMILIES, mixed, pair, traffic
from kvconform.conformance.real.run import FULL, SMALL, restricted, scenes
from kvconform.conformance.real.scenes import SCENES
from kvconform.conformance.rules import BY_ID
from kvconform.connectors.targets.deployments import DEPLOYMENTS
from kvconform.reports.real import table
from kvconform.scenario.deployment import Deployment
from kvconform.scenario.errors import UsageError

ROOT = Path(__file__).resolve().parents[2]

# -- the model and the prompts --------------------------------------------------------------------


def test_the_swapped_model_computes_what_the_plain_one_does_for_swapped_tokens(
    tmp_path: Path,
) -> None:
    make_model(tmp_path / "plain")
    make_model(tmp_path / "again")
    make_model(tmp_path / "swapped", swap=True)
    plain, again, other = (
        load_file(tmp_path / name / "model.safetensors") for name in ("plain", "again", "swapped")
    )
    assert all(torch.equal(plain[name], again[name]) for name in plain)
    differ = [name for name in plain if not torch.equal(plain[name], other[name])]
    assert differ == ["model.embed_tokens.weight"]
    tokens = [3, 77, 200, SWAP - 1]
    (name,) = differ
    assert torch.equal(other[name][tokens], plain[name][swapped(tokens)])
    assert swapped(swapped(tokens)) == tokens
    config = json.loads((tmp_path / "plain" / "config.json").read_text())
    assert config["vocab_size"] == VOCABULARY == len(plain[name])


def test_traffic_shares_prefixes_and_fits() -> None:
    some = list(islice(traffic(1, "scene"), 60))
    assert some == list(islice(traffic(1, "scene"), 60))
    assert some[0][: 2 * BLOCK] == some[FAMILIES][: 2 * BLOCK] != some[1][: 2 * BLOCK]
    assert len(set(some)) == len(some)
    assert max(map(len, some)) + ANSWER <= LONGEST
    assert all(token < SWAP for prompt in some for token in prompt)  # none is a swapped one
    assert not {p[:BLOCK] for p in some} & {p[:BLOCK] for p in islice(traffic(1, "other"), 60)}


def test_a_pair_differs_in_its_first_two_blocks() -> None:
    mine, other = pair(1, "proof", 2)
    assert len(mine) == len(other)
    assert mine[2 * BLOCK :] == other[2 * BLOCK :]
    assert mine[:BLOCK] != other[:BLOCK]
    assert mine[BLOCK : 2 * BLOCK] != other[BLOCK : 2 * BLOCK]
    assert mixed(other, mine, 3) == (*other[:3], *mine[3:])
    assert mixed(other, mine, 0) == mine
    assert mixed(other, mine, len(mine)) == other


# -- comparison and verdict -----------------------------------------------------------------------

RIGHT = Answer((1, 2, 3), 0.5)


def end(tokens: tuple[int, ...], reason: str, *, asked: bool = False, error: str = "") -> Any:
    return {
        "tokens": list(tokens), "reason": reason, "error": error, "asked_to_abort": asked,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("ended", "may_fail", "counted", "kind"),
    [
        (end((1, 2, 3), "length"), False, "equal", ""),
        (end((1, 2, 3, 9), "length"), False, "equal", ""),  # it was asked for more
        (end((1, 2), "abort", asked=True), False, "aborted", ""),
        (end((), "abort", asked=True), False, "aborted", ""),
        (end((), "error"), True, "failed", ""),
        (end((), "error"), False, "", "refused"),
        (end((1,), "abort"), False, "", "refused"),
        (end((), "", error="ValueError: no"), False, "", "refused"),
        (end((1, 2, 4), "length"), False, "", "unequal"),
        (end((2,), "abort", asked=True), False, "", "unequal"),
        (end((9,), "error"), True, "", "unequal"),
    ],
)
def test_a_request_is_judged_by_its_answer_and_its_end(
    ended: dict[str, Any], may_fail: bool, counted: str, kind: str
) -> None:
    outcome = Outcome("pd x", "says")
    outcome.judge({"r": ended}, {"r": RIGHT}, may_fail=may_fail)
    counts = {n: getattr(outcome, n) for n in ("equal", "aborted", "failed") if n}
    assert counts == {n: int(n == counted) for n in counts}
    assert [f.kind for f in outcome.findings] == ([kind] if kind else [])
    assert outcome.verdict == ("fail" if kind else "pass")


def test_requests_with_one_fault_are_one_finding() -> None:
    outcome = Outcome("pd x", "says")
    outcome.judge(
        {n: end((9,), "length") for n in "abc"}, dict.fromkeys("abc", RIGHT), may_fail=False
    )
    (finding,) = outcome.findings
    assert finding.requests == ("a", "b", "c")


def outcome_with(kind: str = "", lacks: str = "") -> Outcome:
    outcome = Outcome("pd x", "says", lacks=lacks)
    if kind:
        outcome.findings.append(Finding(kind, "what", ("r1",)))
    return outcome


@pytest.mark.parametrize(
    ("outcomes", "code"),
    [
        ([], 2),
        ([outcome_with()], 0),
        ([outcome_with(), outcome_with(lacks="nothing loaded")], 2),
        ([outcome_with("left"), outcome_with(lacks="nothing loaded")], 1),
        ([outcome_with("unequal"), outcome_with("killed")], 5),
        ([outcome_with("hung")], 5),
    ],
)
def test_exit_codes_are_those_of_a_check(outcomes: list[Outcome], code: int) -> None:
    assert exit_code(outcomes) == code


def test_findings_name_rules_that_there_are() -> None:
    assert {rule for rule in RULES.values() if rule} <= set(BY_ID)


def test_an_answer_that_was_a_close_call_is_not_clear() -> None:
    assert Answer((1,), 0.01).is_clear
    assert not Answer((1,), 1e-5).is_clear


def test_the_table_shows_scenes_findings_and_what_they_lack() -> None:
    shown = table(
        "mine (a:B)", as_data([outcome_with("left"), outcome_with(lacks="nothing loaded")]), "0.0"
    )
    assert "mine (a:B) on real engines, vLLM 0.0" in shown
    assert "pd x: what  (KVC-402)" in shown
    assert "r1" in shown
    assert "inconclusive, for nothing loaded" in shown
    assert max(map(len, shown.splitlines())) <= 130


# -- scenes ---------------------------------------------------------------------------------------


def test_scenes_are_many_and_the_first_one_is_the_proof() -> None:
    for topology in ("pd", "store"):
        small, full = scenes(topology, SMALL), scenes(topology, FULL)
        assert small[0].name == full[0].name == "wrong-prompt"
        assert {s.name for s in small} < {s.name for s in full}
    assert len({(s.topology, s.name) for s in SCENES}) == len(SCENES)
    assert restricted(SMALL, 40).aborts == 8
    assert restricted(FULL, None) == FULL
    late = restricted(SMALL, None, "late")
    assert [s.name for s in scenes("pd", late)] == ["late"]
    assert scenes("store", late) == []


LOG = """\
ERROR 11-30 22:20:34 [x.py:1] Traceback (most recent call last):
ValueError: no tokenizer
(EngineCore pid=12) ERROR 11-30 22:20:34 [core.py:1750]   File "/x/vllm/a.py", line 3, in f
(EngineCore pid=12) ERROR 11-30 22:20:34 [core.py:1750]     g()
(EngineCore pid=12) ERROR 11-30 22:20:34 [core.py:1750]   File "/x/vllm/b.py", line 9, in g
(EngineCore pid=12) ERROR 11-30 22:20:34 [core.py:1750]     raise KeyError(1)
(EngineCore pid=12) ERROR 11-30 22:20:34 [core.py:1750] KeyError: 1
(EngineCore pid=12) INFO 11-30 22:20:35 [other.py:3] fine
"""


def test_the_last_words_of_an_engine_core_are_its_own_exception() -> None:
    assert last_exception(LOG) == "KeyError: 1 (g, b.py line 9)"
    assert last_exception("") == ""
    assert last_exception(LOG.split("(EngineCore")[0]) == ""  # others log, and live on


def test_a_process_that_ends_answers_nothing_any_more(tmp_path: Path) -> None:
    # It finds no kvconform, or no model, and ends at once.
    env = {"PATH": os.environ["PATH"], "PYTHONSAFEPATH": "1"}
    engine = EngineProcess("first", "LLM", {}, env, tmp_path, tmp_path / "log")
    try:
        with pytest.raises(GoneError, match="first"):
            engine.wait_until_up(60.0)
        assert not engine.is_up
        with pytest.raises(GoneError):
            engine.books()
    finally:
        engine.close()
        engine.kill()  # once more does nothing


def test_waiting_ends() -> None:
    answers = iter([False, False, True])
    assert until(lambda: next(answers), 5.0, tick=0.0)
    assert not until(lambda: False, 0.01, tick=0.0)


def test_what_a_target_stands_on_is_asked_for_by_name() -> None:
    with pytest.raises(UsageError, match="install Debian's package nowhere9"):
        require_parts(Deployment("x", "a:B", libraries={"libnowhere.so.9": "nowhere9"}))
    with pytest.raises(UsageError, match="'no_such_module', which is not installed"):
        require_parts(Deployment("x", "a:B", modules=("json", "no_such_module")))
    require_parts(Deployment("x", "a:B", modules=("json",)))


@pytest.mark.parametrize("deployment", DEPLOYMENTS, ids=lambda d: d.name)
def test_kvc_fetches_what_a_known_target_stands_on(deployment: Deployment) -> None:
    pins = ROOT / "requirements" / f"e2e-{deployment.name}.txt"
    assert pins.exists() == bool(deployment.modules)
    if pins.exists():
        lines = [x for x in pins.read_text().splitlines() if not x.startswith("#")]
        assert all(x.count("==") == 1 for x in lines)
        assert len(lines) >= len(deployment.modules)


# -- real engines ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def kernels() -> None:
    try:
        require_kernels()
    except UsageError as error:
        pytest.skip(str(error))


@pytest.mark.slow
@pytest.mark.usefixtures("kernels")
def test_the_reference_connector_is_conformant(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    assert main(["e2e", "ascend", "--small", "--json", str(report)]) == 0
    data = json.loads(report.read_text())
    assert data["exit"] == 0
    assert [one["verdict"] for one in data["scenes"]] == ["pass"] * len(data["scenes"])
    assert all(one["left"] == 0 and one["equal"] for one in data["scenes"])
    assert {one["scene"].split()[0] for one in data["scenes"]} == {"pd", "store"}


@pytest.mark.slow
@pytest.mark.usefixtures("kernels")
def test_an_engine_that_cannot_be_made_says_why(tmp_path: Path) -> None:
    options = {**OPTIONS, "model": "nowhere"}
    engine = EngineProcess("first", "LLM", options, environment({}), tmp_path, tmp_path / "log")
    try:
        with pytest.raises(GoneError, match=r"first: \w+Error: "):
            engine.wait_until_up()
        assert " line " in engine.last_words()  # the exception, and where it was raised
    finally:
        engine.kill()


@pytest.mark.slow
@pytest.mark.usefixtures("kernels")
def test_a_connector_that_reads_the_wrong_blocks_is_found(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    arguments = ["--small", "--topology", "store", "--json", str(report)]
    assert main(["e2e", "zoo:wrong-block", *arguments]) == 1
    kinds = {f["kind"] for one in json.loads(report.read_text())["scenes"] for f in one["findings"]}
    assert "unequal" in kinds
