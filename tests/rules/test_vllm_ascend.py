"""The bug that this project began with, in the code that was released with it.

Skipped where vllm-ascend is not installed; it fits one vLLM only, so it is in no environment of
ours::

    ./kvc --vllm 0.18.0 --with vllm-ascend==0.18.0 test tests/rules/test_vllm_ascend.py
    ./kvc --vllm 0.23.0 --with vllm-ascend==0.23.0 test tests/rules/test_vllm_ascend.py
"""

from __future__ import annotations

import threading
from importlib.util import find_spec

import pytest

from kvconform.conformance.check import Options, check_connector
from kvconform.conformance.run import play
from kvconform.connectors.targets.resolve import resolve
from kvconform.scenario.actions import Arrive, Step
from kvconform.scenario.prompt import Prompt
from kvconform.scenario.scenario import Scenario
from kvconform.scenario.shape import Shape

FULL_HIT = {"KVC-302", "KVC-010"}
"""What a child of a MultiConnector does when another one loads the request: 0.18.0 reports it as
received, 0.23.0 raises an IndexError."""

pytestmark = [
    pytest.mark.skipif(
        find_spec("vllm_ascend") is None, reason="needs vllm-ascend, see the module's docstring"
    ),
    # The target's threads end by SystemExit, which Python passes over and pytest reports.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning"),
]

SCENARIO = Scenario(
    Shape(topology="pd", engines=2),
    (Arrive(Prompt(0, 40), 4), Step(3, 0), Step(4, 1), Arrive(Prompt(0, 64), 4), Step(3, 0)),
)


def test_requests_pass_from_prefill_to_decode_and_nothing_is_left() -> None:
    for _ in range(3):
        outcome = play(resolve("vllm-ascend-mooncake"), SCENARIO)
        assert outcome.violation is None
    assert threading.active_count() == 1


def test_exploration_finds_the_full_hit_bug() -> None:
    options = Options(seed=1, examples=40, shrink_runs=30)
    checked = check_connector(resolve("vllm-ascend-multi"), options)
    verdicts = [checked.verdict.of(rule) for rule in FULL_HIT]
    (failed,) = [verdict for verdict in verdicts if verdict.result == "fail"]
    assert {f.violation.fingerprint.side for f in failed.findings} == {"worker half"}
