"""Who carries transfers out: the caller, at once, or a background thread, one after another.

Where a thread does, only it touches their blocks, and it is done with a transfer before anyone
learns of the outcome: an answer that comes later than the time limit finds nobody. The limit is for
the other end; a copy on the device that has begun is waited for.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Protocol

from kvconform.connectors.ascend.device import Device
from kvconform.connectors.ascend.transfers import GoneError, Outcome, Transfer

_logger = logging.getLogger(__name__)

_JOIN_SECONDS = 5.0

Move = Callable[[Transfer, float], Sequence[int]]
"""``move(transfer, deadline)``: copy what can be copied until then, on the monotonic clock.

The answer is the blocks that were not transferred; all of them, if it raises.
"""


def carry_out(move: Move, transfer: Transfer, deadline: float) -> Outcome:
    """How a transfer ended, whatever happened."""
    failed: Sequence[int] = transfer.block_ids
    try:
        failed = move(transfer, deadline)
    except GoneError as error:
        _logger.warning("The %s %s failed: %s", transfer.direction, transfer.id, error)
    except Exception:  # the outcome tells
        _logger.exception("The %s %s failed", transfer.direction, transfer.id)
    return transfer.ended(failed)


class Mover(Protocol):
    """Carries transfers out, and keeps their outcomes until they are told."""

    def __contains__(self, transfer_id: str) -> bool:
        """Whether its outcome has not been told."""

    @property
    def is_idle(self) -> bool:
        """All outcomes have been told."""

    def submit(self, transfer: Transfer) -> None:
        """Start a transfer."""

    def poll(self) -> list[Outcome]:
        """Transfers that ended since the last poll, each exactly once."""

    def wait(self, transfer_id: str) -> Outcome:
        """Block until this transfer has ended; ``poll`` does not return it as well.

        Raises:
            KeyError: no such transfer was submitted, or its outcome has been reported.
        """

    def close(self) -> None:
        """What is open fails, but for a copy that has begun. Calling it again does nothing."""


class AtOnce:
    """A mover whose transfers have ended when ``submit`` returns; for copies that do not wait.

    Args:
        move: what is done.
    """

    def __init__(self, move: Move) -> None:
        self._move = move
        self._ended: dict[str, Outcome] = {}  # by transfer id, not reported yet

    def __contains__(self, transfer_id: str) -> bool:
        return transfer_id in self._ended

    @property
    def is_idle(self) -> bool:
        """See ``Mover``."""
        return not self._ended

    def submit(self, transfer: Transfer) -> None:
        """See ``Mover``."""
        self._ended[transfer.id] = carry_out(self._move, transfer, time.monotonic())

    def poll(self) -> list[Outcome]:
        """See ``Mover``."""
        ended = list(self._ended.values())
        self._ended.clear()
        return ended

    def wait(self, transfer_id: str) -> Outcome:
        """See ``Mover``."""
        return self._ended.pop(transfer_id)

    def close(self) -> None:
        """See ``Mover``; what has not been told never is."""
        self._ended.clear()


class Thread:
    """A mover with a thread, which starts with the first transfer.

    Args:
        name: of the thread.
        seconds: time limit of a transfer, from its submission.
        move: what is done in the thread.
    """

    def __init__(self, name: str, seconds: float, move: Move) -> None:
        self._seconds = seconds
        self._move = move
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"kv-mover {name}")
        self._open: dict[str, Future[Outcome]] = {}  # by transfer id, not reported yet

    def __contains__(self, transfer_id: str) -> bool:
        return transfer_id in self._open

    @property
    def is_idle(self) -> bool:
        """See ``Mover``."""
        return not self._open

    def submit(self, transfer: Transfer) -> None:
        """See ``Mover``; the time limit begins here."""
        deadline = time.monotonic() + self._seconds
        try:
            moved = self._thread.submit(carry_out, self._move, transfer, deadline)
        except RuntimeError:  # it has been closed
            moved = Future()
            moved.set_result(transfer.ended(transfer.block_ids))
        self._open[transfer.id] = moved

    def poll(self) -> list[Outcome]:
        """See ``Mover``."""
        ended = [name for name, moved in self._open.items() if moved.done()]
        return [self._open.pop(name).result() for name in ended]

    def wait(self, transfer_id: str) -> Outcome:
        """See ``Mover``."""
        return self._open.pop(transfer_id).result()

    def close(self) -> None:
        """See ``Mover``; who moves has been told to give up."""
        late = wait(self._open.values(), _JOIN_SECONDS).not_done
        self._thread.shutdown(wait=not late)


def mover_for(device: Device, name: str, move: Move) -> Mover:
    """Who carries out transfers that wait for nobody but this device."""
    return Thread(name, math.inf, move) if device.takes_time else AtOnce(move)
