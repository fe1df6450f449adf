"""Processes for targets: a target that crashes, hangs or eats the memory takes only its own down.

The parent imports neither vLLM nor the target. It reads the black box of a process that died, names
hook, action and scenario, starts another one, and the other units go on.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from kvconform.conformance import blackbox
from kvconform.conformance.units import Job, Result
from kvconform.scenario.errors import HarnessError, UsageError
from kvconform.scenario.target import Device

_TICK = 0.2
_GRACE = 2.0
"""Seconds that a hanging process gets to write down its stacks."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a process may use.

    Attributes:
        hang: seconds without a sign of life (a hook called, an action done) until it counts as
            hung.
        start: seconds that importing vLLM and the target may take.
        memory: bytes of resident memory.
    """

    hang: float = 60.0
    start: float = 300.0
    memory: int = 6 << 30


@dataclass(slots=True)
class Death:
    """A process that a target took down.

    Attributes:
        unit: what it was doing, in words.
        how: ``crash``, ``hang`` or ``memory``.
        detail: signal, exit code, or limit.
        hook: half and name of the hook that was called last.
        scenario: the run so far, its last action not finished; None outside a run.
        stacks: Python stacks of all threads of a hung process.
        log: the end of what it printed.
    """

    unit: str
    how: str
    detail: str
    hook: str
    scenario: dict[str, Any] | None
    stacks: str = ""
    log: str = ""


@dataclass(slots=True)
class Done:
    """The end of a job: a result, or a death."""

    index: int
    result: Result | None
    death: Death | None = None


class _Process:
    """One child, and the job that it is at."""

    def __init__(self, limits: Limits, device: Device) -> None:
        self.limits = limits
        self.folder = Path(tempfile.mkdtemp(prefix="kvconform-worker-"))
        self.log = (self.folder / "log.txt").open("w+b")
        read, write = os.pipe()
        self.child = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "kvconform.conformance.worker",
                str(write),
                str(self.folder),
                device,
            ],
            stdin=subprocess.PIPE,
            stdout=self.log,
            stderr=self.log,
            pass_fds=[write],
            env={**os.environ, "PYTHONHASHSEED": "0"},
            start_new_session=True,  # an interrupt at the terminal is the parent's to deal with
        )
        os.close(write)
        self.answers: IO[bytes] = os.fdopen(read, "rb", buffering=0)
        self.buffer = b""
        self.job: tuple[int, Job] | None = None
        self.ready = False
        self.beats = 0
        self.last_sign = time.monotonic()
        self.progress = [0, 0, 0]

    def give(self, index: int, job: Job) -> None:
        """Hand over a job."""
        self.job = (index, job)
        self.last_sign = time.monotonic()
        assert self.child.stdin is not None
        try:
            self.child.stdin.write(json.dumps(job.to_json()).encode() + b"\n")
            self.child.stdin.flush()
        except BrokenPipeError:
            pass  # it has died; the next look finds out

    def hear(self) -> list[dict[str, Any]]:
        """What it said since; an empty list at its end as well (see ``ended``)."""
        chunk = os.read(self.answers.fileno(), 1 << 16)
        if not chunk:
            self.child.wait(timeout=30)
        self.last_sign = time.monotonic()
        self.buffer += chunk
        *lines, self.buffer = self.buffer.split(b"\n")
        return [json.loads(line) for line in lines if line]

    def ended(self) -> bool:
        """Whether the process is gone."""
        return self.child.poll() is not None

    def overrun(self) -> tuple[str, str] | None:
        """Whether it broke a limit: how, and which."""
        now = time.monotonic()
        reading = self.reading()
        if reading is not None and reading.beats != self.beats:
            self.beats = reading.beats
            self.last_sign = now
        limit = self.limits.hang if self.ready else self.limits.start
        if now - self.last_sign > limit:
            return "hang", f"no sign of life for {limit:.0f} s"
        used = self._memory()
        if used > self.limits.memory:
            return "memory", f"{used >> 20} MiB of memory, {self.limits.memory >> 20} are allowed"
        return None

    def reading(self) -> blackbox.Reading | None:
        """What its black box says."""
        try:
            return blackbox.read(self.folder / "blackbox")
        except (OSError, ValueError):
            return None
        except Exception:
            return None

    def _memory(self) -> int:
        try:
            pages = int(Path(f"/proc/{self.child.pid}/statm").read_text().split()[1])
        except (OSError, ValueError, IndexError):
            return 0
        return pages * os.sysconf("SC_PAGE_SIZE")

    def death(self, how: str, detail: str) -> Death:
        """Write down how it died; a hung process writes its stacks first."""
        if not self.ended():
            if how == "hang":
                self.child.send_signal(signal.SIGUSR1)
                time.sleep(_GRACE)
            self.kill()
        stacks = self.folder / "stacks.txt"
        self.log.seek(0)
        log = self.log.read()[-2000:].decode(errors="replace")
        reading = self.reading()
        unit = str(self.job[1].unit) if self.job else "start"
        return Death(
            unit,
            how,
            detail,
            reading.hook if reading else "",
            reading.scenario if reading else None,
            stacks.read_text(errors="replace")[:6000] if stacks.exists() else "",
            log,
        )

    def kill(self) -> None:
        """End it, whatever it is doing, with all that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.child.pid, signal.SIGKILL)
        self.child.wait()

    def close(self) -> None:
        """Clean up."""
        self.kill()
        self.answers.close()
        self.log.close()
        if self.child.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self.child.stdin.close()
        shutil.rmtree(self.folder, ignore_errors=True)


@dataclass(slots=True)
class Pool:
    """Does jobs in ``size`` processes.

    Use as a context manager.

    Attributes:
        size: processes at most.
        limits: for each of them.
        tell: hears of progress: runs, steps and faults of the jobs at work.
        device: what they have to have ready before vLLM is imported.
    """

    size: int = 1
    limits: Limits = field(default_factory=Limits)
    tell: Callable[[list[int]], None] = lambda _: None
    device: Device = "cpu"
    _processes: list[_Process] = field(default_factory=list)

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *exc: object) -> None:
        for process in self._processes:
            process.close()
        self._processes.clear()

    def map(self, jobs: Sequence[Job]) -> Iterator[Done]:
        """Do jobs; yields each as it ends, in any order.

        Raises:
            UsageError: the target cannot be loaded or set up.
            HarnessError: kvconform itself failed.
        """
        waiting = list(enumerate(jobs))[::-1]
        left = len(waiting)
        while left:
            for process in self._idle(len(waiting)):
                if waiting:
                    process.give(*waiting.pop())
            for done in self._look():
                left -= 1
                yield done

    def _idle(self, wanted: int) -> list[_Process]:
        busy = [p for p in self._processes if p.job is not None]
        while len(self._processes) < min(self.size, len(busy) + wanted):
            self._processes.append(_Process(self.limits, self.device))
        return [p for p in self._processes if p.job is None]

    def _look(self) -> Iterator[Done]:
        ready, _, _ = select.select([p.answers for p in self._processes], [], [], _TICK)
        for process in list(self._processes):
            if process.answers in ready:
                for said in process.hear():
                    if "usage" in said:
                        raise UsageError(said["usage"])
                    if "harness" in said:
                        raise HarnessError(said["harness"])
                    process.ready |= "ready" in said
                    if "progress" in said:
                        process.progress = said["progress"]
                    if "result" in said and process.job is not None:
                        index, _ = process.job
                        process.job, process.progress = None, [0, 0, 0]
                        yield Done(index, Result.from_json(said["result"]))
            if process.ended():
                code = process.child.returncode
                if code == -signal.SIGTERM:  # no target does that to its own process
                    raise HarnessError("A worker process was ended from outside (SIGTERM).")
                name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
                yield from self._lost(process, "crash", name)
                continue
            overrun = process.overrun() if process.job is not None else None
            if overrun is not None:
                yield from self._lost(process, *overrun)
        self.tell([sum(p.progress[i] for p in self._processes) for i in range(3)])

    def _lost(self, process: _Process, how: str, detail: str) -> Iterator[Done]:
        death = process.death(how, detail)
        job = process.job
        self._processes.remove(process)
        process.close()
        if not process.ready and job is not None:
            raise HarnessError(
                f"A worker process could not start ({how}: {detail}). "
                f"The end of what it printed: {death.log.strip()[-300:] or 'nothing'}"
            )
        if job is not None:
            yield Done(job[0], None, death)
