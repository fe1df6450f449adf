"""What the engines' KV lies on, and when a forward has its effect; more of them in ``faults``.

A forward is *launched*: what it does to the KV, and what it reads there, happens when the device
gets to it, in the order of the launches of a rank. Here that is at once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from kvconform.scenario.actions import Streams

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Misuse:
    """Something that must not be done with a device.

    Attributes:
        wrong: what it was; names are those of the device.
        text: the same in words.
        engine: whose device it was; None: that cannot be told.
        rank: the same.
    """

    wrong: str
    text: str
    engine: int | None
    rank: int | None


class Device:
    """The host: KV lies in its memory, and work is done when it is asked for."""

    defers = False
    """Whether what was launched may happen later."""

    waited = 0
    """Copies so far that did not run when they were asked for."""

    failures = 0
    """Copies so far that failed because they were told to."""

    def begin(self, engines: int, ranks: int) -> None:
        """A run of so many engines begins; nothing of the one before is left."""

    def end(self) -> None:
        """The run is over."""

    def died(self, engine: int) -> None:
        """An engine is no more, and what it had asked for is not done."""

    def allocate(self, engine: int, rank: int, dims: Sequence[int]) -> tuple[Floats, list[Any]]:
        """Memory of a rank, zeros.

        Returns:
            An array of this shape, which the engine reads and writes where the device does, and a
            tensor for each index of its first dimension, which the target gets.
        """
        array = np.zeros(dims, dtype=np.float32)
        return array, [torch.from_numpy(part) for part in array]

    def scope(self, engine: int, rank: int) -> contextlib.AbstractContextManager[None]:
        """Within it this thread is that of a rank's worker: it has set the rank's device."""
        return contextlib.nullcontext()

    def launch(self, engine: int, rank: int, what: Callable[[], None]) -> None:
        """Do ``what`` behind all that was launched for this rank before."""
        what()

    def mark(self, engine: int, rank: int) -> Any:
        """A place in a rank's order: all that has been launched, and no more."""
        return None

    def reach(self, mark: Any) -> None:
        """Wait until the device has got as far as a mark.

        Raises:
            Exception: what was launched has raised it.
        """

    def touches(self, tensors: Iterable[Any]) -> bool:
        """Whether something that was asked for, and has not been done, touches this memory."""
        return False

    def misuses(self) -> list[Misuse]:
        """What was done wrong since this was last asked."""
        return []

    # -- orders; each returns whether it had any effect --------------------------------------------

    def stall(self, streams: Streams, rank: int | None) -> bool:
        """From now on work of these streams waits until it is told to go on or is waited for."""
        return False

    def flow(self, work: int | None, newest_first: bool) -> bool:
        """So much of what waits is done; None: all, and no stream is stalled any more."""
        return False

    def fail(self, copies: int, late: bool, rank: int | None) -> bool:
        """The next copies of these ranks fail: when they are asked for, or ``late``."""
        return False

    def calm(self) -> None:
        """Faults off: nothing is stalled, nothing fails any more."""
