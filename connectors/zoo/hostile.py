"""Connectors that take their process down: they show that nothing else goes down with it.

Each misbehaves in a load of more than three blocks, so that a check has come some way before.
"""

from __future__ import annotations

import ctypes
import os
import threading

from kvconform.connectors.ascend.connector import AscendConnector
from kvconform.connectors.ascend.worker import WorkerHalf


class _Misbehaves(WorkerHalf):
    def start_load_kv(self) -> None:
        if any(job.direction == "load" and len(job.keys) > 3 for job in self._to_start):
            self.misbehave()
        super().start_load_kv()

    def misbehave(self) -> None:
        raise NotImplementedError


class _Exits(_Misbehaves):
    def misbehave(self) -> None:
        os._exit(7)


class _Crashes(_Misbehaves):
    def misbehave(self) -> None:
        ctypes.string_at(0)


class _Hangs(_Misbehaves):
    def misbehave(self) -> None:
        threading.Event().wait()


class _EatsMemory(_Misbehaves):
    def misbehave(self) -> None:
        self.eaten = [bytearray(64 << 20)]
        while True:  # touched, so that it is really taken; slowly enough to be caught
            self.eaten.append(bytearray(os.urandom(1 << 20) * 16))


class ExitsInHook(AscendConnector):
    """Ends its process from within a hook."""

    worker_half_class = _Exits


class CrashesInHook(AscendConnector):
    """Reads from address 0, as a bug in native code would."""

    worker_half_class = _Crashes


class HangsInHook(AscendConnector):
    """Waits for ever for something that nobody will do."""

    worker_half_class = _Hangs


class EatsMemoryInHook(AscendConnector):
    """Takes more and more memory and never comes back."""

    worker_half_class = _EatsMemory
