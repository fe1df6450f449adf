"""Scenarios go to JSON and back, and bad JSON gets a sentence."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given

from kvconform.scenario.errors import UsageError
from kvconform.scenario.identity import Identity
from kvconform.scenario.prompt import FIRST_TOKEN, IMAGE_TOKEN, VOCABULARY, Prompt
from kvconform.scenario.scenario import Scenario
from kvconform.scenario.shape import Shape
from kvconform.scenario.violation import Fingerprint, Violation, is_rule_id
from tests.strategies import scenarios


@given(scenarios())
def test_a_scenario_survives_json(scenario: Scenario) -> None:
    assert Scenario.from_json(json.loads(json.dumps(scenario.to_json()))) == scenario


def test_defaults_are_left_out() -> None:
    assert Scenario(Shape(tp=2)).to_json() == {"shape": {"tp": 2}, "actions": []}


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (3, "expected an object"),
        ({"actions": 1}, "list 'actions'"),
        ({"shape": {"tp": 0}, "actions": []}, "tp must be at least 1, got 0"),
        ({"shape": {"tp": True}, "actions": []}, "expected int, got True"),
        ({"shape": {"size": 1}, "actions": []}, "unknown field 'size'"),
        ({"shape": {}, "actions": [{"do": "dance"}]}, "unknown action 'dance'"),
        ({"shape": {}, "actions": [{"do": ["step"]}]}, "unknown action"),
        ({"shape": {}, "actions": ["step"]}, "expected an action"),
        ({"shape": {}, "actions": [{"do": "step", "count": "x"}]}, "expected int, got 'x'"),
        ({"shape": {}, "actions": [{"do": "hold", "direction": "up"}]}, "one of 'load'"),
        ({"shape": {}, "actions": [{"do": "arrive"}]}, "'prompt' is missing"),
        (
            {"shape": {}, "actions": [{"do": "arrive", "prompt": {"family": -1, "length": 1}}]},
            "non-negative",
        ),
    ],
)
def test_bad_json_gets_one_sentence(data: Any, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        Scenario.from_json(data, "x.json: scenario")
    message = str(caught.value)
    assert says in message
    assert message.startswith("x.json: scenario")
    assert "\n" not in message


def test_prompts_of_a_family_share_their_stream() -> None:
    short, long = Prompt(3, 20).tokens(), Prompt(3, 40).tokens()
    assert long[:20] == short
    assert Prompt(4, 20).tokens() != short
    assert Prompt(3, 20, 5).tokens()[:20] == short
    assert Prompt(3, 20, 5).tokens()[20:] != long[20:25]
    assert len(Prompt(3, 20, 5).tokens()) == Prompt(3, 20, 5).num_tokens == 25


def test_tokens_of_images_are_the_same_for_every_image() -> None:
    text = Prompt(7, 40).tokens()
    one, other = (Prompt(7, 40).tokens(Identity(media=name, at=20)) for name in "xy")
    assert one == other
    assert {one[p] == text[p] for p in range(40) if p not in range(20, 28)} == {True}
    assert set(one[20:28]) == {IMAGE_TOKEN}
    assert Prompt(7, 5).tokens(Identity(media="x")) == (IMAGE_TOKEN,) * 5


def test_tokens_lie_in_the_vocabulary() -> None:
    assert all(FIRST_TOKEN <= t < VOCABULARY for t in Prompt(7, 500, 500).tokens())


def test_a_violation_survives_json() -> None:
    violation = Violation(
        Fingerprint("KVC-302", "worker half", "Mine", "kind", "m:f"), "this", "that", step=4
    )
    assert Violation.from_json(json.loads(json.dumps(violation.to_json()))) == violation


def test_a_fingerprint_names_the_fault_and_nothing_else() -> None:
    one = Fingerprint("KVC-302", "worker half", "Mine", "kind", "m:f")
    assert one.id == Fingerprint("KVC-302", "worker half", "Mine", "kind", "m:f").id
    assert one.id != Fingerprint("KVC-301", "worker half", "Mine", "kind", "m:f").id
    assert len(one.id) == 10


@pytest.mark.parametrize(
    ("text", "is_one"), [("KVC-302", True), ("VLL-001", True), ("KVC-3", False), ("kvc-302", False)]
)
def test_rule_ids(text: str, is_one: bool) -> None:
    assert is_rule_id(text) is is_one
