"""What the metadata of a step speaks of, whatever it is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from kvconform.engine.plans import Plans, said


@dataclass
class Job:
    name: str
    blocks: tuple[int, ...]


class Slotted:
    __slots__ = ("blocks", "unset")

    def __init__(self, blocks: list[int]) -> None:
        self.blocks = blocks


@pytest.mark.parametrize(
    "metadata",
    [
        {"r0": [3, 4]},
        [Job("r0", (3, 4))],
        {"jobs": {"r0": Slotted([3, 4])}},
    ],
    ids=["plain", "dataclass", "slots"],
)
def test_names_numbers_and_lists(metadata: Any) -> None:
    found = said(metadata)
    assert "r0" in found.names
    assert {3, 4} <= found.numbers
    assert (3, 4) in found.lists
    assert not found.opaque


def test_a_loop_is_no_trap() -> None:
    loop: list[Any] = ["r0"]
    loop.append(loop)
    assert said(loop).names == {"r0"}


@pytest.mark.parametrize("metadata", [b"x" * 100, [torch.arange(4)]], ids=["encoded", "tensor"])
def test_what_cannot_be_read(metadata: Any) -> None:
    assert said(metadata).opaque
    assert not said(b"the name of a block").opaque


def test_a_promise_that_the_workers_hear_of_in_parts() -> None:
    plans = Plans()
    plans.promised("r0", (3, 4))
    plans.promised("r1", (5,))
    known = ("r0", "r1")
    assert list(plans.look({"r0": [3], "r1": []}, known)) == [("r0", {3}), ("r1", set())]
    assert plans.holds([3])
    assert not plans.holds([3], [4])
    assert list(plans.look([[4]], known)) == [("r0", {4})]
    assert list(plans.look({"r0": [3, 4]}, known)) == []  # all has been said
    assert list(plans.look({"r1": [5]}, ())) == [("r1", {5})]  # its last word
    assert list(plans.look({"r1": [5]}, known)) == []


def test_lists_of_another_engines_blocks_are_not_its_own() -> None:
    plans = Plans()
    plans.promised("r0", (1, 2, 3))
    assert list(plans.look({"here": [1, 2], "there": [3, 9]}, ("r0",))) == [("r0", {1, 2})]
