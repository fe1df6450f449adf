"""The KV of the engines on simulated NPUs, under the real torch_npu.

Each rank of each engine has a device of its own. Device 0 is nobody's, for it is what torch_npu
gives a thread that has set none. A device's memory is memory of this process, so the engine reads
and writes KV in place, as work of the rank's compute stream: when that stream gets there.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import prod
from typing import Any

import numpy as np
import torch

from kvconform.engine.device import Device, Floats, Misuse
from kvconform.faults.devices import cann
from kvconform.scenario.actions import Streams

MOST_RANKS = 8
"""Ranks that an engine may have: their devices are numbered one behind the other."""

MOST_ENGINES = (cann.DEVICES - 1) // MOST_RANKS

_NOBODY = 0


class SimulatedAscend(Device):
    """One run's devices; each run begins with idle ones."""

    defers = True

    def __init__(self) -> None:
        self._cann = cann.load()
        self._npu: Any = vars(torch)["npu"]
        self._engines = self._ranks = 0
        self._raised: Exception | None = None

    @property
    def waited(self) -> int:  # type: ignore[override]
        return self._cann.deferred

    @property
    def failures(self) -> int:  # type: ignore[override]
        return self._cann.failures

    def begin(self, engines: int, ranks: int) -> None:
        self._engines, self._ranks = engines, ranks
        self._cann.reset()
        self._npu.set_device(_NOBODY)
        self._cann.use(1, cann.DEVICES - 1)

    def end(self) -> None:
        self._cann.reset()

    def died(self, engine: int) -> None:
        for rank in range(MOST_RANKS):
            self._cann.discard(_number(engine, rank))

    def allocate(self, engine: int, rank: int, dims: Sequence[int]) -> tuple[Floats, list[Any]]:
        number = _number(engine, rank)
        with self.scope(engine, rank):
            self._cann.compute(self._npu.current_stream())
            whole = torch.empty(tuple(dims), dtype=torch.float32, device=f"npu:{number}")
        memory = (ctypes.c_float * prod(dims)).from_address(whole.data_ptr())
        array = np.ctypeslib.as_array(memory).reshape(dims)
        array[:] = 0
        return array, list(whole.unbind(0))

    @contextlib.contextmanager
    def scope(self, engine: int, rank: int) -> Iterator[None]:
        self._npu.set_device(_number(engine, rank))
        try:
            yield
        finally:
            self._npu.set_device(_NOBODY)

    def launch(self, engine: int, rank: int, what: Callable[[], None]) -> None:
        def guarded() -> None:
            try:
                what()
            except Exception as error:  # nobody hears it in the middle of another's call
                self._raised = self._raised or error

        self._cann.call(self._stream(engine, rank), guarded)

    def mark(self, engine: int, rank: int) -> Any:
        stream = self._stream(engine, rank)
        event = self._npu.Event()
        event.record(stream)
        return event

    def reach(self, mark: Any) -> None:
        if mark is not None:
            mark.synchronize()
        if self._raised is not None:
            raised, self._raised = self._raised, None
            raise raised

    def touches(self, tensors: Iterable[Any]) -> bool:
        if not self._cann.waiting():
            return False
        return any(self._cann.touched(t.data_ptr(), t.numel() * t.element_size()) for t in tensors)

    def misuses(self) -> list[Misuse]:
        return [
            Misuse(said.wrong, said.text, *self._whose(said.device))
            for said in self._cann.complaints()
        ]

    # -- orders ------------------------------------------------------------------------------------

    def stall(self, streams: Streams, rank: int | None) -> bool:
        for number in self._numbers(rank):
            self._cann.hold(streams, number)
        return True

    def flow(self, work: int | None, newest_first: bool) -> bool:
        self._cann.order(newest_first)
        if work is None:
            self._cann.release()
            return True
        return self._cann.run(work) > 0

    def fail(self, copies: int, late: bool, rank: int | None) -> bool:
        for number in self._numbers(rank):
            self._cann.fail(copies, late, number)
        return True

    def calm(self) -> None:
        self._cann.fail(0)
        self._cann.order(newest_first=False)
        self._cann.release()

    def _stream(self, engine: int, rank: int) -> Any:
        """The compute stream of a rank."""
        return self._npu.current_stream(_number(engine, rank))

    def _numbers(self, rank: int | None) -> list[int]:
        ranks = range(MOST_RANKS) if rank is None else [rank % self._ranks]
        return [_number(engine, r) for engine in range(self._engines) for r in ranks]

    @staticmethod
    def _whose(number: int) -> tuple[int | None, int | None]:
        return divmod(number - 1, MOST_RANKS) if number > _NOBODY else (None, None)


def _number(engine: int, rank: int) -> int:
    return 1 + engine % MOST_ENGINES * MOST_RANKS + rank
