"""Each story leads to what it is after: the member of the zoo that needs it falls."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest

from kvconform.conformance.aimed import Aimed, Move
from kvconform.conformance.run import play
from kvconform.connectors.targets.resolve import resolve
from kvconform.faults.packages import NAMES
from kvconform.scenario.scenario import Scenario
from kvconform.scenario.shape import Shape

TIGHT = Shape(num_blocks=8)

STORIES: tuple[tuple[str, str, tuple[Any, ...], Shape], ...] = (
    # mutant, story, what is drawn in it, shape
    ("cursor-ahead", "answered", (0, 1, 0), Shape(async_scheduling=True)),
    ("stops-at-refusal", "refused", (0, 0), Shape()),
    ("stops-at-refusal", "refused", (0, 2), Shape()),
    ("counts-on", "failed_within_a_step", (0,), Shape()),
    ("counts-on-resume", "resumed_in_chunks", (0, 1), Shape()),
    ("drops-preempted", "to_the_brim", (0, False, 2, True, 1, 1), TIGHT),
    ("flushes-late", "to_the_brim", (0, True, 2, False, 1),
     dataclasses.replace(TIGHT, max_num_batched_tokens=128)),
    ("locks-in-lookup", "no_room", (0, 2, 2, True, 1), TIGHT),
    ("carries-open-saves", "reset_while_saving", (0, 2, 1), Shape()),
)  # fmt: skip


def told(story: str, drawn: tuple[Any, ...], shape: Shape) -> Move:
    """A story in which these values are drawn."""
    left, families = iter(drawn), itertools.count(1)
    aimed = Aimed(shape, frozenset(NAMES), lambda: next(families))
    move: Move = getattr(aimed, story)(lambda _: next(left))
    return move


@pytest.mark.parametrize(("name", "story", "drawn", "shape"), STORIES)
def test_a_story_kills(name: str, story: str, drawn: tuple[Any, ...], shape: Shape) -> None:
    scenario = Scenario(shape, told(story, drawn, shape))
    assert play(resolve(f"zoo:{name}"), scenario).violation is not None
    assert play(resolve("ascend"), scenario).violation is None
