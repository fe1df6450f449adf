"""Which blocks the groups beside the first one need, and how they are named."""

from __future__ import annotations

import pytest

from kvconform.connectors.ascend.groups import Groups, are_there

GROUPS = Groups(16, (0, 24))


@pytest.mark.parametrize(
    ("tokens", "first"), [(1, 0), (24, 0), (38, 0), (39, 1), (48, 1), (54, 1), (55, 2)]
)
def test_a_window_needs_what_the_next_token_sees(tokens: int, first: int) -> None:
    seen = range(tokens + 1 - 24, tokens + 1)
    assert GROUPS.first(1, tokens) == max(0, seen[0]) // 16 == first
    assert GROUPS.first(0, tokens) == 0


def test_only_groups_beside_the_first_one_are_named() -> None:
    assert list(GROUPS.others(0, 48)) == [(1, 1), (1, 2)]
    assert list(GROUPS.others(2, 48)) == [(1, 2)]
    assert list(Groups(16, (0, 0)).others(1, 33)) == [(1, 1), (1, 2)]
    assert list(Groups(16).others(0, 48)) == []


def test_a_load_does_not_end_where_the_last_token_sees_more_than_the_next_one() -> None:
    at_the_edge = 39
    assert GROUPS.can_end(at_the_edge, at_the_edge + 1)
    assert not GROUPS.can_end(at_the_edge, at_the_edge)
    assert GROUPS.can_end(48, 48)
    assert Groups(16).can_end(at_the_edge, at_the_edge)


def test_the_first_group_has_the_names_that_one_group_has() -> None:
    assert GROUPS.key(0, b"hash") == b"hash"
    assert GROUPS.key(1, b"hash") not in (b"hash", GROUPS.key(2, b"hash"))


def test_null_blocks_are_not_there() -> None:
    tables = [[3, 4], [0, 5]]
    assert are_there(tables, [(0, 0), (1, 1)])
    assert not are_there(tables, [(1, 0)])
    assert not are_there(tables, [(0, 2)])
    assert not are_there(tables, [(2, 0)])
