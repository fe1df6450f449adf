"""KVC-1xx: what get_num_new_matched_tokens may answer."""

from __future__ import annotations

from typing import Any

from kvconform.conformance.checks.base import Check
from kvconform.conformance.facts import Facts
from kvconform.scenario.trace import Event

_HOOK = "get_num_new_matched_tokens"


class _LookupCheck(Check):
    """Hears lookups only."""

    def on_hook(self, event: Event) -> None:
        if event.data["name"] == _HOOK and event.request in self.ledger.requests:
            answer = event.data["answer"]
            promised, is_async = answer if _is_pair(answer) else (None, False)
            if not _is_int(promised):
                promised = None
            self.looked_up(event, self.ledger.requests[event.request], promised, is_async)

    def looked_up(self, event: Event, facts: Facts, promised: int | None, is_async: bool) -> None:
        """A lookup; ``promised`` is None when it deferred or answered nonsense."""
        raise NotImplementedError

    def seen_before(self, facts: Facts) -> bool:
        """Whether at least one block of the prompt was in an earlier one."""
        return facts.seen >= self.ledger.shape.block_size


class NotNegative(_LookupCheck):
    """KVC-101."""

    rule = "KVC-101"

    def looked_up(self, event: Event, facts: Facts, promised: int | None, is_async: bool) -> None:
        self.reached += self.seen_before(facts)
        if promised is not None and promised < 0:
            local = event.data["local"]
            self.fail(
                event,
                "negative",
                expected="at least 0 tokens beyond the local ones",
                got=f"{promised} for {facts.name}, which has {local} tokens locally",
                why=f"vLLM adds it up and schedules from position {local + promised}, into blocks "
                "that others share",
                where=_HOOK,
            )


class NotTooMuch(_LookupCheck):
    """KVC-102."""

    rule = "KVC-102"

    def looked_up(self, event: Event, facts: Facts, promised: int | None, is_async: bool) -> None:
        total, local = event.data["total"], event.data["local"]
        known = facts.seen
        if known and known > len(facts.tokens) - self.ledger.shape.block_size:
            self.reached += 1
        if promised is None or promised <= 0:
            return
        most = total - local - (0 if is_async else 1)
        if promised > most:
            self.fail(
                event,
                "more than the prompt" if promised > total - local else "whole prompt, synchronous",
                expected=f"at most {most} of {total} tokens beyond {local} local ones"
                + ("" if is_async else " (one is left to compute)"),
                got=f"{promised} for {facts.name}",
                why="vLLM's scheduler asserts, and the engine core dies",
                where=_HOOK,
            )


class NothingIsNotAsync(_LookupCheck):
    """KVC-103."""

    rule = "KVC-103"

    def looked_up(self, event: Event, facts: Facts, promised: int | None, is_async: bool) -> None:
        if promised != 0:
            return
        self.reached += self.seen_before(facts)
        if is_async:
            self.fail(
                event,
                "zero and asynchronous",
                expected="(0, False)",
                got=f"(0, True) for {facts.name}",
                why="vLLM's scheduler asserts that an asynchronous load has tokens",
                where=_HOOK,
            )


class Types(_LookupCheck):
    """KVC-104."""

    rule = "KVC-104"

    def on_hook(self, event: Event) -> None:
        if event.data["name"] != _HOOK:
            return
        answer = event.data["answer"]
        if _is_pair(answer) and (answer[0] is None or _is_int(answer[0])) and _is_bool(answer):
            self.reached += answer[0] is None or answer[0] != 0
            return
        self.fail(
            event,
            "wrong types",
            expected="a tuple of int or None, and bool",
            got=f"{answer!r} ({_types(answer)})",
            why="numpy scalars and tensors do not survive the way to other processes as numbers",
            where=_HOOK,
        )


class Repeatable(_LookupCheck):
    """KVC-105."""

    rule = "KVC-105"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._last: dict[str, tuple[int, int, int | None]] = {}

    def on_admitted(self, event: Event) -> None:
        self._last.pop(event.request or "", None)

    def looked_up(self, event: Event, facts: Facts, promised: int | None, is_async: bool) -> None:
        now = (self.ledger.world_version, event.data["local"], promised)
        before = self._last.get(facts.name)
        self._last[facts.name] = now
        if before is None or promised is None or before[2] is None or before[:2] != now[:2]:
            return
        self.reached += self.seen_before(facts)
        # More is no fault: what was computed or saved meanwhile may be found by now.
        if promised < before[2]:
            self.fail(
                event,
                "less than before",
                expected=f"{before[2]} again: {facts.name} was not admitted, and nothing changed",
                got=str(promised),
                why="the first lookup reserved or consumed something; a request whose allocation "
                "fails is looked up in every step",
                where=_HOOK,
                unsettled=("threads of the target, which may evict",)
                if event.data.get("threads")
                else (),
            )


class NoneResolves(_LookupCheck):
    """KVC-106."""

    rule = "KVC-106"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._asked: dict[str, int] = {}  # in which step, the last time

    def looked_up(self, event: Event, facts: Facts, promised: int | None, is_async: bool) -> None:
        self.reached += facts.deferred
        self._asked[facts.name] = event.step

    def on_left(self, event: Event) -> None:
        facts = self.ledger.requests.get(event.request or "")
        if event.data["what"] != "request" or facts is None or not facts.deferred:
            return
        # Else vLLM is stuck with someone else, and has not come to ask again.
        if self._asked[facts.name] == event.step:
            self.fail(
                event,
                "deferred for ever",
                expected=f"a number of tokens for {facts.name}, now that the store answers",
                got="None in every step of the drain",
                why="the request waits for ever and the engine spins",
                where=_HOOK,
            )


def _is_int(value: Any) -> bool:
    return type(value) is int


def _is_pair(answer: Any) -> bool:
    return isinstance(answer, tuple) and len(answer) == 2


def _is_bool(answer: Any) -> bool:
    return type(answer[1]) is bool


def _types(answer: Any) -> str:
    if _is_pair(answer):
        return ", ".join(type(a).__name__ for a in answer)
    return type(answer).__name__


CHECKS = (NotNegative, NotTooMuch, NothingIsNotAsync, Types, Repeatable, NoneResolves)
