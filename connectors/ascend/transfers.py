"""What a transport is asked to move, and what it answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvconform.connectors.ascend.device import Device, Mark
from kvconform.connectors.ascend.metadata import Direction, Source


class GoneError(Exception):
    """The other end gives no answer to this request, now or later."""


@dataclass(frozen=True)
class Transfer:
    """One rank's share of a job.

    Attributes:
        id: the job's id, and the holder of its pins or reservations in the store.
        request_id: for whom.
        direction: ``load``, ``save``, ``pull`` or ``offer``.
        rank: the engine's rank.
        keys: names of the blocks in the store, in the order of ``block_ids``.
        block_ids: device blocks of this rank.
        device: the rank's KV memory.
        after: what the device had been given to do before, see ``Device.mark``.
        source: of a pull: whose blocks.
        seconds: of an offer: how long its lease runs.
    """

    id: str
    request_id: str
    direction: Direction
    rank: int
    keys: tuple[bytes, ...]
    block_ids: tuple[int, ...]
    device: Device
    after: Mark | None = None
    source: Source | None = None
    seconds: float = 0.0

    def ended(self, failed_block_ids: Sequence[int] = ()) -> Outcome:
        """How it ended, if it has."""
        return Outcome(self.id, self.request_id, self.direction, tuple(failed_block_ids))


@dataclass(frozen=True)
class Outcome:
    """How a transfer ended: its blocks are not touched any more.

    Attributes:
        transfer_id: which.
        request_id: for whom.
        direction: ``load``, ``save``, ``pull`` or ``offer``.
        failed_block_ids: blocks that were not transferred.
    """

    transfer_id: str
    request_id: str
    direction: Direction
    failed_block_ids: tuple[int, ...]
