"""A black box: what a process was doing, readable after it has died.

A memory-mapped file: a heart beat, the hook that is being called, and the scenario so far. Writing
costs a few microseconds; nothing is lost when the process is killed.
"""

from __future__ import annotations

import json
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_SIZE = 1 << 18
_HEAD = struct.Struct("<QHI")  # beats, bytes of the hook's name, bytes of the scenario
_HOOK = 200


@dataclass(frozen=True, slots=True)
class Reading:
    """What a black box says.

    Attributes:
        beats: grows while the process gets on.
        hook: half and name of the hook that was called last.
        scenario: shape and actions of the run so far, as JSON data; None outside a run.
    """

    beats: int
    hook: str
    scenario: dict[str, Any] | None


class BlackBox:
    """Written by the process that may die."""

    def __init__(self, path: Path) -> None:
        with path.open("w+b") as file:
            file.truncate(_SIZE)
            self._map = mmap.mmap(file.fileno(), _SIZE)
        self._beats = 0
        self._hook = 0
        self._scenario = 0

    def hook(self, half: str, name: str) -> None:
        """A hook is about to be called."""
        text = f"{half}: {name}".encode()[:_HOOK]
        self._map[_HEAD.size : _HEAD.size + len(text)] = text
        self._hook = len(text)
        self._write()

    def scenario(self, data: dict[str, Any] | None) -> None:
        """The run so far, its last action about to be done; None: no run is going on."""
        text = json.dumps(data).encode() if data is not None else b""
        start = _HEAD.size + _HOOK
        if len(text) > _SIZE - start:
            text = b""
        self._map[start : start + len(text)] = text
        self._scenario = len(text)
        self._write()

    def _write(self) -> None:
        self._beats += 1
        self._map[: _HEAD.size] = _HEAD.pack(self._beats, self._hook, self._scenario)


def read(path: Path) -> Reading:
    """Read a black box; a torn scenario is read as none."""
    data = path.read_bytes()
    beats, hook, length = _HEAD.unpack_from(data)
    start = _HEAD.size + _HOOK
    try:
        scenario = json.loads(data[start : start + length]) if length else None
    except ValueError:
        scenario = None
    name = data[_HEAD.size : _HEAD.size + hook].decode(errors="replace")
    return Reading(beats, name, scenario)
