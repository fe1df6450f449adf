"""Mooncake's ``TransferEngine``, an option: the bytes of a pull pass by it, not in messages.

All that is said still goes over ZeroMQ, see ``peers``. Asked for blocks by a reader that can, the
rank that offers them copies them, then and there, to a *slot*, memory that Mooncake lets others
read. The reader fetches the slot, and then asks whether the copy is still there: if it has been
given up meanwhile, what was read may be anything, and the pull has failed. So Mooncake only ever
reads, and a read that comes late finds bytes that nobody will use.

Where no slot is free the blocks go in messages, as they do without this.

Mooncake asks nobody for a token, and its ports are open to all who can reach the machine: whoever
does can read a slot, and write to it. So it takes ``allow_remote``, even on loopback.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from kvconform.connectors.ascend.settings import Mooncake
from kvconform.connectors.ascend.store import Shard
from kvconform.connectors.ascend.transfers import GoneError
from kvconform.connectors.ascend.wire import pack

Memory: TypeAlias = npt.NDArray[np.uint8]

_SLOTS = 2
_FIRST_PAUSE, _LONGEST_PAUSE = 20e-6, 1e-3
"""Between two looks at a read, in seconds: Mooncake tells nobody that it has ended."""

_SET_ASIDE = 4
"""Reads in memory of their own that may be unfinished, before nothing is read this way."""


class Engine:
    """This rank's ``TransferEngine``.

    Args:
        mooncake: how it is reached.

    Attributes:
        session: what others call it.

    Raises:
        ValueError: there is no Mooncake here, or it does not start.
    """

    def __init__(self, mooncake: Mooncake) -> None:
        try:
            from mooncake.engine import TransferEngine
        except ImportError as error:
            raise ValueError(
                "kv_connector_extra_config['mooncake'] needs the package "
                f"mooncake-transfer-engine, or -non-cuda: {error}"
            ) from error
        self._engine: Any = TransferEngine()
        if self._engine.initialize(mooncake.host, "P2PHANDSHAKE", mooncake.protocol, ""):
            raise ValueError(
                f"Mooncake does not start at {mooncake.host!r} with the protocol "
                f"{mooncake.protocol!r}; its own messages say why"
            )
        self.session = f"{mooncake.host}:{self._engine.get_rpc_port()}"
        self._memory: list[Memory] = []  # as long as anything may touch it
        self._closed = False

    def close(self) -> None:
        """Nobody reads here, or from here, any more. Calling it again does nothing."""
        if not self._closed:
            self._closed = True
            for memory in self._memory:  # kept: a read that has not ended may touch it yet
                self._engine.unregister_memory(memory.ctypes.data)

    def give_back(self, memory: Memory) -> None:
        """Nothing reads to this memory, or from it, any more."""
        if not self._closed:
            self._memory = [kept for kept in self._memory if kept is not memory]
            self._engine.unregister_memory(memory.ctypes.data)

    def memory(self, size: int) -> Memory:
        """Memory that Mooncake may use, of ``size`` bytes, until it is given back.

        Raises:
            GoneError: Mooncake does not take it.
        """
        memory = np.empty(size, np.uint8)
        if self._engine.register_memory(memory.ctypes.data, size):
            raise GoneError(f"Mooncake takes no memory of {size} bytes")
        self._memory.append(memory)
        return memory

    def read(self, session: str, place: int, into: Memory, deadline: float) -> bool:
        """Fill ``into`` from an address of another engine; False: not in time, and it may go on.

        Raises:
            GoneError: it failed.
        """
        address, size = into.ctypes.data, into.nbytes
        batch = self._engine.batch_transfer_async_read(session, [address], [place], [size])
        if batch <= 0:
            raise GoneError(f"Mooncake reads nothing from {session}")
        pause = _FIRST_PAUSE
        while not (status := self._engine.transfer_check_status(batch)):
            if time.monotonic() >= deadline:
                return False
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
        if status < 0:
            raise GoneError(f"Mooncake could not read from {session}")
        return True


@dataclass(slots=True)
class _Slot:
    memory: Memory
    ticket: str = ""  # of the copy that is in it
    until: float = 0.0


class Slots:
    """Copies that wait to be fetched. For one thread.

    Args:
        engine: by which they are.
        size: of a slot, in bytes.
        seconds: after so long a copy is given up.
        clock: seconds.
    """

    def __init__(
        self,
        engine: Engine,
        size: int,
        seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._size = size
        self._seconds = seconds
        self._clock = clock
        self._slots: list[_Slot] = []
        self._tickets = itertools.count(1)

    @property
    def session(self) -> str:
        """Where they are fetched."""
        return self._engine.session

    def put(self, shards: Sequence[Shard]) -> tuple[str, int] | None:
        """Copy shards, one after another; ticket and address, or None: there is no room."""
        slot = self._free()
        if slot is None or sum(map(len, shards)) > self._size:
            return None
        start = 0
        for shard in shards:
            slot.memory[start : start + len(shard)] = pack(shard)
            start += len(shard)
        slot.ticket, slot.until = str(next(self._tickets)), self._clock() + self._seconds
        return slot.ticket, slot.memory.ctypes.data

    def take(self, ticket: str) -> bool:
        """The copy is not needed any more; whether it was there until now."""
        for slot in self._slots:
            if ticket and slot.ticket == ticket:
                slot.ticket = ""
                return True
        return False

    def _free(self) -> _Slot | None:
        now = self._clock()
        for slot in self._slots:
            if not slot.ticket or slot.until <= now:
                return slot
        if len(self._slots) == _SLOTS:
            return None
        self._slots.append(_Slot(self._engine.memory(self._size)))
        return self._slots[-1]


class Reader:
    """Fetches copies. For one thread.

    Args:
        engine: by which.
        size: most that is read at once, in bytes.
    """

    def __init__(self, engine: Engine, size: int) -> None:
        self._engine = engine
        self._size = size
        self._memory: Memory | None = None
        self._set_aside: list[Memory] = []  # a read may still write to these

    @property
    def session(self) -> str:
        """This engine's; empty: nothing is read this way any more."""
        return self._engine.session if len(self._set_aside) < _SET_ASIDE else ""

    def fetch(self, session: str, place: int, size: int, deadline: float) -> Memory:
        """``size`` bytes at an address of another engine, until the next call.

        Raises:
            GoneError: they could not be read in time.
        """
        if not 0 < size <= self._size:
            raise GoneError(f"{size} bytes are no copy, of {self._size} at most")
        if self._memory is None:
            self._memory = self._engine.memory(self._size)
        into = self._memory[:size]
        if not self._engine.read(session, place, into, deadline):
            self._set_aside.append(self._memory)
            self._memory = None
            raise GoneError("no bytes in time")
        return into

    def close(self) -> None:
        """Nothing is fetched any more, and no fetch is under way."""
        if self._memory is not None:
            self._engine.give_back(self._memory)
            self._memory = None
