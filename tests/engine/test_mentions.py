"""What the metadata of a step speaks of, whatever it is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from kvconform.engine.mentions import said


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
