"""One rank's dealings with other engines: what it offers them, and what it pulls from them.

The engine at the other end is in this process, and its memory is read at once; or it has an
address, and is asked. Nothing but ``_other_end`` decides which.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from kvconform.connectors.ascend.device import Device
from kvconform.connectors.ascend.metadata import Source
from kvconform.connectors.ascend.mover import AtOnce, Mover, carry_out, mover_for
from kvconform.connectors.ascend.offers import Offers
from kvconform.connectors.ascend.peers import Peer, Peers
from kvconform.connectors.ascend.settings import Settings
from kvconform.connectors.ascend.transfers import Outcome, Transfer

_logger = logging.getLogger(__name__)


class Exchange:
    """Pulls and offers of one rank, whatever the transport: for its methods see ``Transport``.

    Args:
        engine_id: the engine's.
        rank: it reads from the same rank of other engines, and is read by it.
        peers: the way to and from other processes; None: there is none.
        may_offer: whether this rank can be read. If not, another connector of the same engine may
            be: a sibling in a MultiConnector.
    """

    def __init__(
        self, engine_id: str, rank: int, peers: Peers | None = None, may_offer: bool = True
    ) -> None:
        self._engine_id = engine_id
        self._rank = rank
        self._peers = peers
        self._may_offer = may_offer
        self._offers: Offers | None = None
        self._offered: dict[str, Transfer] = {}  # by transfer id, still open
        self._mover: Mover = AtOnce(self._pull)  # from within this process

    @classmethod
    def of(cls, settings: Settings, rank: int) -> Exchange:
        """As the settings say."""
        peers = None
        if settings.peers is not None:
            peers = Peers(
                settings.peers, settings.engine_id, settings.instance, rank, settings.mooncake
            )
        return cls(settings.engine_id, rank, peers, settings.offers)

    def __contains__(self, transfer_id: str) -> bool:
        """Whether a pull has not been reported."""
        return transfer_id in self._mover or (
            self._peers is not None and transfer_id in self._peers
        )

    def register(self, device: Device) -> None:
        """From now on this rank can pull, and be read, if it may be.

        Raises:
            ValueError: not at the address, or not by the way, that was configured.
            AddressTakenError: someone else can be read there.
        """
        self._mover = mover_for(device, f"{self._engine_id} {self._rank}", self._pull)
        if self._may_offer:
            self._offers = Offers(self._engine_id, self._rank, device)
        if self._peers is not None:
            self._peers.start(self._offers)

    def submit(self, transfer: Transfer) -> None:
        """Pulls from other processes go on in the background, and offers until they are read."""
        if transfer.direction == "offer":
            assert self._offers is not None
            self._offered[transfer.id] = transfer
            self._offers.put(transfer.id, transfer.seconds, transfer.after)
            return
        end = self._other_end(transfer.source)
        mover = end.mover if isinstance(end, Peer) else self._mover
        mover.submit(transfer)

    def move(self, transfer: Transfer) -> Outcome:
        """Pull now, wherever from; the outcome is not kept for ``poll``."""
        end = self._other_end(transfer.source)
        return carry_out(end.pull, transfer, time.monotonic() + end.seconds)

    def _pull(self, transfer: Transfer, deadline: float) -> Sequence[int]:
        return self._other_end(transfer.source).pull(transfer, deadline)

    def release(self, source: Source) -> None:
        """Never waits."""
        self._other_end(source).release(source.offer_id)

    def poll(self) -> list[Outcome]:
        """Pulls and offers that ended."""
        over = self._offers.ended() if self._offers is not None else ()
        # Not after shutdown: then nothing is offered.
        offers = [self._offered.pop(name).ended() for name in over if name in self._offered]
        pulls = self._peers.poll() if self._peers is not None else []
        return offers + self._mover.poll() + pulls

    def wait(self, transfer_id: str) -> Outcome:
        """A pull's."""
        if self._peers is not None and transfer_id in self._peers:
            return self._peers.wait(transfer_id)
        return self._mover.wait(transfer_id)

    def shutdown(self) -> None:
        """No other process reads or is read any more; the threads have ended."""
        if self._peers is not None:
            self._peers.close()
        self._mover.close()
        self._offered.clear()

    def _other_end(self, source: Source | None) -> Peer | _Neighbour:
        assert source is not None
        if source.address is None:
            return _Neighbour(Offers.of(source.engine_id, self._rank))
        if self._peers is None:
            _logger.warning("%s offers at an address, which needs a 'token'", source.engine_id)
            return _Neighbour(None)
        return self._peers.reach(source) or _Neighbour(None)


class _Neighbour:
    """The same rank of an engine in this process; None is one that cannot be reached."""

    seconds = 0.0  # it takes no time

    def __init__(self, offers: Offers | None) -> None:
        self._offers = offers

    def pull(self, transfer: Transfer, deadline: float) -> Sequence[int]:
        source = transfer.source
        assert source is not None
        shards = None
        if self._offers is not None:
            shards = self._offers.read(source.offer_id, source.block_ids)
        if shards is None:  # it came too late, or the engine is gone
            return transfer.block_ids
        transfer.device.write(transfer.block_ids, shards, transfer.after)
        self.release(source.offer_id)
        return ()

    def release(self, offer_id: str) -> None:
        if self._offers is not None:
            self._offers.close(offer_id)
