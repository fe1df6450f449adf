"""An engine in a process of its own, as the scenes see it: orders, answers, and its end.

Every wait has a limit, and :meth:`EngineProcess.kill` takes down the whole process group, so that
nothing outlives the run, whatever the target does.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as Late
from pathlib import Path
from typing import Any

START_SECONDS = 300.0
ANSWER_SECONDS = 60.0
_CLOSE_SECONDS = 20.0
_NEWS = "EngineDeadError"
"""With it vLLM says that an engine core has died, and not of what."""


class GoneError(Exception):
    """The engine's process, or its engine core, has died."""


class RaisedError(GoneError):
    """Its process told of an exception: of an ``LLM``, whose engine core is there, its end."""


class HungError(Exception):
    """It does not answer."""


class EngineProcess:
    """One engine.

    Args:
        name: what messages call it.
        door: ``LLM`` or ``AsyncLLM``.
        options: the engine's arguments, as vLLM names them.
        env: all of its environment.
        folder: where it runs; ``options`` may name files relative to it.
        log: what it prints is added to this file.
    """

    def __init__(
        self,
        name: str,
        door: str,
        options: Mapping[str, Any],
        env: Mapping[str, str],
        folder: Path,
        log: Path,
    ) -> None:
        self.name = name
        self.door = door
        self.log = log
        self._log_from = log.stat().st_size if log.exists() else 0
        self._waiting: dict[int, Future[Any]] = {}
        self._lock = threading.Lock()
        self._number = 0
        self._gone = False
        self._told = ""  # the last exception that its process told of
        with log.open("ab") as said:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "kvconform.conformance.real.child"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said,
                cwd=folder, env=dict(env), text=True, encoding="utf-8", start_new_session=True,
            )  # fmt: skip
        self._up: Future[Any] = Future()
        self._waiting[0] = self._up
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        self._write({"door": door, "options": dict(options)})
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait_until_up(self, seconds: float = START_SECONDS) -> None:
        """Block until it serves.

        Raises:
            GoneError: it ended instead.
            HungError: it takes too long.
        """
        self.result(self._up, seconds)

    @property
    def is_up(self) -> bool:
        """It serves, as far as is known."""
        return not self._gone and self._up.done() and self._up.exception() is None

    def ask(self, do: str, **what: Any) -> Future[Any]:
        """Give an order; its answer comes as a future, which fails when the engine is gone."""
        future: Future[Any] = Future()
        with self._lock:
            if self._gone:
                future.set_exception(GoneError(self.name))
                return future
            self._number += 1
            number = self._number
            self._waiting[number] = future
        self._write({"id": number, "do": do, **what})
        return future

    def result(self, future: Future[Any], seconds: float = ANSWER_SECONDS) -> Any:
        """What was answered.

        Raises:
            GoneError: the engine has died.
            HungError: no answer in time.
        """
        try:
            return future.result(seconds)
        except Late:
            raise HungError(f"{self.name} has not answered for {seconds:.0f} s") from None

    def books(self) -> dict[str, int]:
        """Blocks and requests of its scheduler, and tokens loaded; raises as :meth:`result`."""
        return self.result(self.ask("books"))

    def close(self) -> None:
        """Shut it down in good order if it lets itself be, and kill it in any case."""
        if self.is_up:
            with contextlib.suppress(GoneError, HungError):
                self.result(self.ask("close"), _CLOSE_SECONDS)
        self.kill()

    def kill(self) -> None:
        """SIGKILL for the process and its engine core: nothing is said to anyone."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join(_CLOSE_SECONDS)
        self._end()
        with contextlib.suppress(BrokenPipeError):
            self._stdin.close()

    def last_words(self) -> str:
        """The exception that ended its engine core, with module and line; "": there was none."""
        with self.log.open("rb") as said:
            said.seek(self._log_from)
            return last_exception(said.read().decode("utf-8", "replace")) or self._told

    # -- in the thread ----------------------------------------------------------------------------

    def _read(self) -> None:
        for line in self._stdout:
            said = json.loads(line)
            with self._lock:
                future = self._waiting.pop(said["id"], None)
            if "error" in said and _NEWS not in said["error"]:
                self._told = said["error"]
            if future is None:
                continue
            if "error" in said:
                future.set_exception(RaisedError(f"{self.name}: {said['error']}"))
            else:
                future.set_result(said["answer"])
        self._stdout.close()
        self._end()

    def _end(self) -> None:
        with self._lock:
            self._gone = True
            waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(GoneError(self.name))

    def _write(self, what: Mapping[str, Any]) -> None:
        try:
            self._stdin.write(json.dumps(what) + "\n")
            self._stdin.flush()
        except (BrokenPipeError, ValueError):
            self._end()


_CORE = re.compile(r"^\(EngineCore[^)]*\) ERROR [^\[]*\[core\.py:\d+\] ?(.*)")
"""A line in which the engine core tells why it dies."""

_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')
_ERROR = re.compile(r"[A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt|Timeout)\b.*")


def last_exception(log: str) -> str:
    """The exception of which an engine core died, and where it was raised; "": it told of none."""
    frame, found = "", ""
    for raw in log.splitlines():
        told = _CORE.match(raw)
        if told is None:
            continue
        line = told[1].strip()
        if place := _FRAME.search(line):
            frame = f" ({place[3]}, {os.path.basename(place[1])} line {place[2]})"
        elif _ERROR.fullmatch(line):
            found, frame = line[:300] + frame, ""
    return found


def until(condition: Any, seconds: float, tick: float = 0.1) -> bool:
    """Ask again and again until it is true, or the time is over; whether it is."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(tick)
    return True
