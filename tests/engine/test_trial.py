"""What a connector hands out is tried on copies, and compared with the requests' blocks."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

import pytest
from vllm.distributed.kv_events import BlockStored
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorStats

from kvconform.engine import trial
from kvconform.engine.chains import Chains

SIZE = 2


@dataclass
class Stats(KVConnectorStats):
    """A counter and a level."""

    data: dict[str, Any] = field(default_factory=dict)

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        return Stats({"count": self.data["count"] + other.data["count"],
                      "level": max(self.data["level"], other.data["level"])})  # fmt: skip

    def is_empty(self) -> bool:
        return not self.data["count"]


class Request:
    """Two full blocks of tokens, of which one is computed."""

    request_id = "r0"
    block_hashes = (b"a" * 32, b"b" * 32)
    all_token_ids = (1, 2, 3, 4, 5)
    num_computed_tokens = 3


def tried(data: dict[str, Any]) -> trial.Trial:
    return trial.statistics(Stats(data), lambda method, error: f"{method}: {error!r}")


def test_counters_are_told_from_levels() -> None:
    found = tried({"count": 3, "level": 7, "no": True})
    assert found.values == {"count": 3, "level": 7}
    assert found.adds == ("count",)
    assert not found.problem


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ({"count": -1, "level": 0}, "not a number of things"),
        ({"count": 1}, "KeyError in aggregate"),
        ({}, "KeyError in is_empty"),
        ({"count": 1, "level": threading.Lock()}, "unpicklable"),
    ],
)
def test_what_is_wrong(data: dict[str, Any], problem: str) -> None:
    assert tried(data).problem == problem


def test_numbers_of_a_log() -> None:
    assert trial.odd({"a": 1, "b": {"c": 0.5}}) is None
    assert trial.odd({"b": {"c": float("nan")}}) == ("not a number of things", "b.c is nan")
    assert trial.odd(None) == ("not a number", "reduce() is NoneType")


@pytest.fixture
def chains() -> Chains:
    chains = Chains()
    request: Any = Request()
    chains.note(request, SIZE)
    return chains


def event(parent: Any, tokens: list[int], *names: bytes) -> BlockStored:
    more = {"lora_name": None} if "lora_name" in BlockStored.__struct_fields__ else {}
    return BlockStored(list(names), parent, tokens, SIZE, None, "CPU", **more)


A, B = Request.block_hashes


@pytest.mark.parametrize(
    ("told", "problem"),
    [
        (event(None, [1, 2], A), ""),
        (event(None, [1, 2, 3, 4], A, B), ""),
        (event(A, [3, 4], B), ""),
        (event(None, [], B), ""),  # no more than a name
        (event(None, [7, 8], b"own"), ""),  # a name of the connector's
        (event(None, [3, 4], B), "no parent"),
        (event(B, [1, 2], A), "wrong parent"),
        (event(A, [1, 2], B), "wrong tokens"),
        (event(A, [3, 4, 5], B), "tokens and blocks do not match"),
    ],
)
def test_events_and_the_blocks_of_requests(chains: Chains, told: Any, problem: str) -> None:
    found = chains.problem(told)
    assert (found[0] if found else "") == problem


def test_what_is_computed(chains: Chains) -> None:
    found = [chains.get(name) for name in (A, B, b"own")]
    assert [block and block.computed for block in found] == [True, False, None]
