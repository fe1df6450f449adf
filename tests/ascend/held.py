"""A transport whose transfers can be held, failed and released by the test."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from kvconform.connectors.ascend.transport import LocalTransport, Outcome, Transfer


class HeldTransport:
    """Wraps the transport that the connector would have had.

    Attributes:
        hold: leave what is submitted from now on in ``waiting``.
        waiting: transfers that were submitted and not moved, oldest first.
        fail: indices of blocks that every transfer from now on does not move.
        answers: lookups are answered; else the store says that it does not know.
        boast: lookups promise every key, whether it is there or not.
    """

    def __init__(self, inner: LocalTransport) -> None:
        self.inner = inner
        self.hold = False
        self.waiting: list[Transfer] = []
        self.fail: tuple[int, ...] = ()
        self.answers = True
        self.boast = False
        self._ended: list[Outcome] = []

    def lookup(self, keys: Sequence[bytes]) -> int | None:
        if not self.answers:
            return None
        return len(keys) if self.boast else self.inner.lookup(keys)

    def submit(self, transfer: Transfer) -> None:
        self.waiting.append(transfer)
        if not self.hold:
            self.release()

    def release(self) -> None:
        """Move everything that waits."""
        while self.waiting:
            self._ended.append(self._move(self.waiting.pop(0)))

    def poll(self) -> list[Outcome]:
        ended, self._ended = self._ended, []
        return ended

    def wait(self, transfer_id: str) -> Outcome:
        self.release()
        outcome = next(o for o in self._ended if o.transfer_id == transfer_id)
        self._ended.remove(outcome)
        return outcome

    def _move(self, transfer: Transfer) -> Outcome:
        failed = {transfer.block_ids[i] for i in self.fail if i < len(transfer.block_ids)}
        kept = [i for i, block in enumerate(transfer.block_ids) if block not in failed]
        outcome = self.inner.move(
            replace(
                transfer,
                keys=tuple(transfer.keys[i] for i in kept),
                block_ids=tuple(transfer.block_ids[i] for i in kept),
            )
        )
        failed.update(outcome.failed_block_ids)
        return replace(outcome, failed_block_ids=tuple(sorted(failed)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def connect(
    config: Any, role: Any, rank: int, make_default: Callable[[], LocalTransport]
) -> HeldTransport:
    """The factory that the tests name in the connector's configuration."""
    return HeldTransport(make_default())
