"""Traffic: equal numbers give equal chats, and they share what chats share."""

from __future__ import annotations

import pytest

from kvconform.conformance.traffic import LONGEST, Traffic
from kvconform.conformance.units import LONG_MOVES, SOAK_PARTS, plan
from kvconform.scenario.actions import Arrive
from kvconform.scenario.identity import Identity


def chats(number: int, *, tenants: bool, count: int = 60) -> list[Arrive]:
    traffic = Traffic(number, tenants=tenants)
    return [traffic.next() for _ in range(count)]


def test_equal_numbers_give_equal_traffic_whoever_asks_meanwhile() -> None:
    one, two = Traffic(7, tenants=True), Traffic(7, tenants=True)
    other = Traffic(8, tenants=True)
    first = [(one.next(), other.next())[0] for _ in range(60)]
    assert first == [two.next() for _ in range(60)]
    assert first != chats(8, tenants=True)


@pytest.mark.parametrize("number", range(5))
def test_turns_share_prefixes_and_grow(number: int) -> None:
    requests = chats(number, tenants=False)
    assert {r.identity for r in requests} == {Identity()}
    assert max(r.prompt.num_tokens for r in requests) <= LONGEST
    for family in {r.prompt.family for r in requests}:
        lengths = [r.prompt.length for r in requests if r.prompt.family == family]
        assert len(set(lengths)) > 1  # longer and longer prefixes of one stream
    tails = sorted(r.prompt.tail for r in requests)
    assert tails[len(tails) // 2] < 10 < tails[-1]  # most are short, and some are long


def test_tenants_and_adapters_come_when_asked_for() -> None:
    seen = {r.identity for number in range(20) for r in chats(number, tenants=True, count=5)}
    assert any(i.salt for i in seen)
    assert any(i.adapter for i in seen)


def test_a_soak_is_long_runs_of_chats() -> None:
    faults = frozenset({"full-hit"})
    short, long = plan(3, faults, 20, 1), plan(4, faults, 20, 1)
    soak = long[len(short) :]
    assert long[: len(short)] == short
    assert [(u.level, u.moves, u.chats, u.examples) for u in soak] == [
        ("L4", LONG_MOVES, True, 20)
    ] * SOAK_PARTS
    assert len({u.seed for u in soak}) == SOAK_PARTS
