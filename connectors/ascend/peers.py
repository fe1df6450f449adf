"""Offers across processes: each rank serves its own, and reads those of the same rank elsewhere.

Both sides take part in every read. The reader asks for blocks of an offer; the rank that offers
copies them from its device then and there, if the offer is open, see ``offers``. So nothing that a
reader may do, however late, touches blocks whose offer has ended. A reader that gets no answer in
time, or none any more, has failed. Its release may be lost: the offer's lease answers for that.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace

import torch

from kvconform.connectors.ascend.link import Link
from kvconform.connectors.ascend.metadata import Source
from kvconform.connectors.ascend.mooncake import Engine, Reader, Slots
from kvconform.connectors.ascend.mover import Thread
from kvconform.connectors.ascend.offers import Offers
from kvconform.connectors.ascend.service import Service
from kvconform.connectors.ascend.settings import Endpoint, Mooncake
from kvconform.connectors.ascend.sockets import check_reach
from kvconform.connectors.ascend.store import Shard
from kvconform.connectors.ascend.transfers import GoneError, Outcome, Transfer
from kvconform.connectors.ascend.wire import Message, WireError, offers_title, pack, unpack

_logger = logging.getLogger(__name__)

_ASKED_AT_ONCE = 1024  # blocks: a request is small, whatever there is to pull
_KEPT = 64  # peers that nothing is pulled from at the moment


class OfferServer:
    """Serves the offers of one rank, in a thread, until it is closed.

    Args:
        endpoint: where, and on which terms.
        title: whose, see ``wire.offers_title``.
        rank: the rank.
        offers: its offers.
        engine: by which readers that can may fetch them.

    Raises:
        ValueError: the address is none, or may be reached by other machines and must not be.
        AddressTakenError: someone serves there already.
    """

    def __init__(
        self, endpoint: Endpoint, title: str, rank: int, offers: Offers, engine: Engine | None
    ) -> None:
        self._rank = rank
        self._offers = offers
        self._slots: Slots | None = None
        if engine is not None:
            self._slots = Slots(engine, endpoint.max_message_bytes, endpoint.transfer_seconds)
        self._max_bytes = endpoint.max_message_bytes
        self._lease_ms = max(1, int(endpoint.lease_seconds * 1000))
        self._service = Service(endpoint, title, self._answer)

    def close(self) -> None:
        """Nobody reads any more. Calling it again does nothing."""
        self._service.close()

    # -- in the thread ----------------------------------------------------------------------------

    def _answer(self, message: Message) -> Message:
        match message.op:
            case "beat":
                return Message("ok", message.number, answer=(self._lease_ms,))
            case "bye":
                return Message("ok", message.number)
        if message.rank != self._rank:
            raise WireError(f"this is rank {self._rank}, not {message.rank}")
        match message.op:
            case "pull" if message.layout != self._offers.layout:
                raise WireError("KV is laid out in another way here")
            case "pull":
                return self._deliver(message, self._pull(message))
            case "taken":
                if self._slots is None or not self._slots.take(message.holder):
                    raise WireError("the copy has been given up")
                return Message("ok", message.number)
            case "release":
                self._offers.close(message.holder)
                return Message("ok", message.number)
        raise WireError(f"no operation {message.op!r}")

    def _deliver(self, message: Message, shards: Sequence[Shard]) -> Message:
        """Shards in an answer, or where they are to be fetched: how many, their size, and where."""
        if message.session and shards and self._slots is not None:
            put = self._slots.put(shards)
            if put is not None:
                ticket, place = put
                answer = (len(shards), len(shards[0]), place)
                session = self._slots.session
                return Message("ok", message.number, holder=ticket, answer=answer, session=session)
        return Message("ok", message.number, shards=tuple(map(pack, shards)))

    def _pull(self, message: Message) -> list[Shard]:
        """As many leading blocks as fit in an answer; none if the offer has ended."""
        shards = self._read(message.holder, message.blocks[:1])
        if shards:
            fit = self._max_bytes // len(shards[0])  # of one rank, all are of one size
            if not fit:
                raise WireError("a block is larger than a message")
            shards += self._read(message.holder, message.blocks[1:fit])
        return shards

    def _read(self, offer_id: str, block_ids: Sequence[int]) -> list[Shard]:
        return self._offers.read(offer_id, block_ids) or []


class Peer:
    """The same rank of an engine in another process.

    Args:
        endpoint: where it answers, and on which terms.
        title: what it is taken for.
        rank: both ends' rank.
        engine: by which it may be read.

    Attributes:
        mover: pulls from it in the background.
        seconds: time limit of a pull.

    Raises:
        ValueError: the address is none.
    """

    def __init__(
        self, endpoint: Endpoint, title: str, rank: int, engine: Engine | None = None
    ) -> None:
        self.seconds = endpoint.transfer_seconds
        self._endpoint = endpoint
        self._rank = rank
        self._reader = Reader(engine, endpoint.max_message_bytes) if engine is not None else None
        self._link = Link(endpoint, title)
        self.mover = Thread(endpoint.address, self.seconds, self.pull)

    def pull(self, transfer: Transfer, deadline: float) -> Sequence[int]:
        """Copy the blocks, as many as fit in a message at a time.

        Raises:
            GoneError: the offer has ended, or there is no answer in time.
        """
        source = transfer.source
        assert source is not None
        here, there = transfer.block_ids, source.block_ids
        try:
            while here:
                answer = self._link.ask_until(
                    deadline,
                    "pull",
                    patient=True,
                    holder=source.offer_id,
                    rank=self._rank,
                    blocks=there[:_ASKED_AT_ONCE],
                    layout=transfer.device.layout,
                    session=self._reader.session if self._reader is not None else "",
                )
                shards = self._shards(answer, deadline)
                count = len(shards)
                if not count:
                    raise GoneError("the offer has ended")
                transfer.device.write(here[:count], shards, transfer.after)
                here, there = here[count:], there[count:]
        finally:
            self.release(source.offer_id)  # it is not read again, whatever happened
        return ()

    def _shards(self, answer: Message, deadline: float) -> Sequence[Shard]:
        """What is in an answer, or what it leads to."""
        if not answer.session:
            return [unpack(shard) for shard in answer.shards]
        if self._reader is None or len(answer.answer) != 3:
            raise WireError("an answer to another question")
        check_reach(replace(self._endpoint, address=f"tcp://{answer.session}"))
        count, size, place = answer.answer
        fetched = self._reader.fetch(answer.session, place, count * size, deadline)
        # What was read before this is known may be of another reader's copy.
        self._link.ask_until(deadline, "taken", patient=True, holder=answer.holder, rank=self._rank)
        return list(torch.from_numpy(fetched).view(count, size))

    def release(self, offer_id: str) -> None:
        """Say that nothing of the offer is needed; nobody waits for the answer."""
        self._link.ask("release", self.seconds, patient=True, holder=offer_id, rank=self._rank)

    def close(self) -> None:
        """What is open fails, and the threads have ended."""
        self._link.close()
        self.mover.close()
        if self._reader is not None and self.mover.is_idle:
            self._reader.close()


class Peers:
    """One rank's way to those of other processes, and theirs to this one.

    Args:
        terms: what is agreed with all of them; its address is where this engine offers, or "".
        engine_id: this engine's.
        instance: see ``Settings``.
        rank: the rank.
        mooncake: the way of the bytes; None: in messages.
    """

    def __init__(
        self,
        terms: Endpoint,
        engine_id: str,
        instance: str,
        rank: int,
        mooncake: Mooncake | None = None,
    ) -> None:
        self._terms = terms
        self._title = offers_title(engine_id, instance)
        self._rank = rank
        self._mooncake = mooncake
        self._engine: Engine | None = None
        self._server: OfferServer | None = None
        # By address and title; the one that was used last comes last.
        self._peers: OrderedDict[tuple[str, str], Peer] = OrderedDict()

    def __contains__(self, transfer_id: str) -> bool:
        return self._of(transfer_id) is not None

    def start(self, offers: Offers | None) -> None:
        """Be ready to read, and let peers read these offers, if an address has been configured.

        Raises:
            ValueError, AddressTakenError: see ``OfferServer``, and ``mooncake.Engine``.
        """
        if self._mooncake is not None:
            self._engine = Engine(self._mooncake)
        if offers is not None and self._terms.address:
            mine = self._terms.of_rank(self._rank)
            self._server = OfferServer(mine, self._title, self._rank, offers, self._engine)

    def reach(self, source: Source) -> Peer | None:
        """The peer that offers; None if its address leads nowhere, or where it must not."""
        title = offers_title(source.engine_id, source.instance)
        key = (str(source.address), title)
        peer = self._peers.get(key)
        if peer is None:
            try:
                endpoint = self._terms.of_rank(self._rank, source.address)
                check_reach(endpoint)  # the address came with a request
                peer = Peer(endpoint, title, self._rank, self._engine)
            except ValueError as error:
                _logger.warning("What %s offers is out of reach: %s", source.engine_id, error)
                return None
            self._make_room()
            self._peers[key] = peer
        self._peers.move_to_end(key)
        return peer

    def poll(self) -> list[Outcome]:
        """Pulls that ended since the last poll, each exactly once."""
        return [outcome for peer in self._peers.values() for outcome in peer.mover.poll()]

    def wait(self, transfer_id: str) -> Outcome:
        """Block until this pull has ended; ``poll`` does not return it as well.

        Raises:
            KeyError: no such pull was submitted, or its outcome has been reported.
        """
        peer = self._of(transfer_id)
        if peer is None:
            raise KeyError(transfer_id)
        return peer.mover.wait(transfer_id)

    def close(self) -> None:
        """Pulls that are open fail, nobody reads here any more, and the threads have ended."""
        if self._server is not None:
            self._server.close()
        for peer in self._peers.values():
            peer.close()
        if self._engine is not None:
            self._engine.close()

    def _of(self, transfer_id: str) -> Peer | None:
        return next((p for p in self._peers.values() if transfer_id in p.mover), None)

    def _make_room(self) -> None:
        """Engines come and go under ever new names: what has not been used for long is closed."""
        idle = [key for key, peer in self._peers.items() if peer.mover.is_idle]
        for key in idle[: max(0, len(self._peers) - _KEPT + 1)]:
            self._peers.pop(key).close()
