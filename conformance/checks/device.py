"""KVC-408 to KVC-411: how a device is used, as the simulated one notices it.

What was read too early shows where it is read at last, and so comes to :class:`content.Content`.
"""

from __future__ import annotations

from typing import ClassVar

from kvconform.conformance.checks.base import Check
from kvconform.scenario.trace import Event


class OfTheDevice(Check):
    """What a device complains of."""

    wrong: ClassVar[frozenset[str]] = frozenset()
    expected: ClassVar[str] = ""
    why: ClassVar[str] = ""

    def on_device(self, event: Event) -> None:
        self.reached += event.data["waited"]
        for wrong, text in event.data["misuses"]:
            if wrong in self.wrong:
                self.fail(
                    event, wrong, where="device", expected=self.expected, got=text, why=self.why
                )
                return


class StaysAsItIs(OfTheDevice):
    """KVC-408."""

    rule = "KVC-408"
    wrong = frozenset({"freed", "freed-in-flight", "out-of-range", "changed"})
    expected = "memory that is there, and stays as it is, until the copy has ended"
    why = "other bytes are copied than were meant, or somebody else's are overwritten"


class Pinned(OfTheDevice):
    """KVC-409."""

    rule = "KVC-409"
    wrong = frozenset({"pageable"})
    expected = "pinned memory"
    why = "the copy waits for all of its stream, or reads memory that has moved"


class ReadWhenFilled(OfTheDevice):
    """KVC-410; the evidence comes to :class:`content.Content`."""

    rule = "KVC-410"


class SetsItsDevice(OfTheDevice):
    """KVC-411."""

    rule = "KVC-411"
    wrong = frozenset({"foreign-device"})
    expected = "a thread that has set the device of its rank"
    why = "it waits for streams in which nothing is, and its copies are in others"


CHECKS = (StaysAsItIs, Pinned, ReadWhenFilled, SetsItsDevice)
