"""What transports do alike beside a worker, wherever the store is."""

from __future__ import annotations

from kvconform.connectors.ascend.exchange import Exchange
from kvconform.connectors.ascend.metadata import Source
from kvconform.connectors.ascend.mover import Mover
from kvconform.connectors.ascend.transfers import Outcome, Transfer


class WorkerSide:
    """Saves and loads, and dealings with other engines: for its methods see ``Transport``.

    Args:
        mover: carries out saves and loads.
        exchange: this rank's dealings with other engines.
    """

    def __init__(self, mover: Mover, exchange: Exchange) -> None:
        self._mover = mover
        self._exchange = exchange

    def submit(self, transfer: Transfer) -> None:
        """The time limit, if there is one, begins here."""
        end = self._exchange if transfer.direction in ("pull", "offer") else self._mover
        end.submit(transfer)

    def release(self, source: Source) -> None:
        """Never waits."""
        self._exchange.release(source)

    def poll(self) -> list[Outcome]:
        """Of all kinds."""
        return self._mover.poll() + self._exchange.poll()

    def wait(self, transfer_id: str) -> Outcome:
        """Not an offer's.

        Raises:
            KeyError: no such transfer was submitted, or its outcome has been reported.
        """
        end = self._exchange if transfer_id in self._exchange else self._mover
        return end.wait(transfer_id)

    def shutdown(self) -> None:
        """Transfers that are open fail, and the threads have ended."""
        self._mover.close()
        self._exchange.shutdown()
