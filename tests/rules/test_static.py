"""L0: KVC-001 and KVC-002 fire on wrong classes, and are silent on right ones."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import pytest

from kvconform.conformance import static
from kvconform.connectors.targets.resolve import resolve
from kvconform.scenario.errors import UsageError
from kvconform.scenario.target import Target
from tests.engine.plain import Nothing, target


class NoSave(Nothing):
    @abstractmethod
    def save_kv_layer(
        self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any
    ) -> None: ...


class ShortConstructor(Nothing):
    def __init__(self, vllm_config: Any, role: Any) -> None:
        super().__init__(vllm_config, role, None)


class ShortHook(Nothing):
    def update_state_after_alloc(self, request: Any, blocks: Any) -> None:  # type: ignore[override]
        pass


class MoreThanNeeded(Nothing):
    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int, hint: int = 0, **kwargs: Any
    ) -> tuple[int, bool]:
        return 0, False


@pytest.mark.parametrize(
    ("cls", "rule", "where"),
    [
        (NoSave, "KVC-001", "save_kv_layer"),
        (ShortConstructor, "KVC-001", "__init__"),
        (ShortHook, "KVC-002", "update_state_after_alloc"),
    ],
)
def test_wrong_classes(cls: type, rule: str, where: str) -> None:
    (violation,) = static.judge(cls, target(cls))
    assert violation.fingerprint.rule == rule
    assert violation.fingerprint.where == where


@pytest.mark.parametrize("cls", [Nothing, MoreThanNeeded])
def test_right_classes(cls: type) -> None:
    assert static.judge(cls, target(cls)) == []


@pytest.mark.parametrize("name", ["ascend", "example", "zoo:full-hit-report"])
def test_known_targets(name: str) -> None:
    known = resolve(name)
    assert static.judge(static.load(known), known) == []


@pytest.mark.parametrize(
    ("cls", "says"),
    [
        ("nowhere:Thing", "no module 'nowhere'"),
        ("json:Thing", "no class 'Thing'"),
        ("json:loads", "not a KV connector"),
        ("json:JSONDecoder", "not a KV connector"),
    ],
)
def test_what_is_not_a_connector(cls: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        static.load(Target("x", cls))


def test_features_are_found_and_say_how() -> None:
    ascend = resolve("ascend")
    found = static.features(static.load(ascend), ascend, frozenset({"hold"}))
    assert found["async"] == "get_finished is overridden"
    assert {"load-failure", "reset", "orders"} <= set(found)
    example = resolve("example")
    assert "async" not in static.features(static.load(example), example, frozenset())
