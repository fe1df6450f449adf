"""Threads of the target that work between steps only, when the world lets them.

A real worker half hands jobs to threads and goes on; when they get to it is up to the machine. Here
it is up to the world, so that equal scenarios give equal runs: within a step they do nothing at
all, and after it they work until each waits for a job, or for something that the world keeps. That
is one of the orders that a machine may choose, and the races of the others are not explored.

:class:`Queue` and :class:`Executor` stand for those of the standard library in the target's module.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

PATIENCE = 10.0
"""Most seconds that threads get to come to rest; who needs more waits for what is not there."""


here = threading.local()
"""``engine``: the engine that a thread of the target works for, when it has a job."""


class Gate:
    """Lets threads at their jobs, and knows when all of them rest.

    Args:
        whose: the engine that is being built.

    Attributes:
        ended: the run is over; who asks for a job is ended.
    """

    def __init__(self, whose: Callable[[], int]) -> None:
        self.whose = whose
        self.ended = False
        self._changed = threading.Condition()
        self._open = False
        self._at_work: set[int] = set()
        self._kept: set[int] = set()
        self._unstarted = 0
        self._queues: list[Queue] = []
        self._executors: list[Executor] = []

    def settle(self) -> bool:
        """Let them work until all rest; whether they came to rest."""
        with self._changed:
            self._open = True
            self._changed.notify_all()
            rested = self._changed.wait_for(self._rests, PATIENCE)
            self._open = False
            return rested

    def end(self) -> None:
        """Who is kept goes on; who waits for a job, or has done his, ends."""
        with self._changed:
            self.ended = True
            self._kept.clear()
            self._changed.notify_all()
            self._changed.wait_for(lambda: not (self._at_work or self._unstarted), PATIENCE)
        for executor in self._executors:
            executor.shutdown(wait=False)

    def keep(self, arrived: Callable[[], None]) -> None:
        """Keep this thread until :meth:`let_go`; ``arrived`` is called when it is."""
        me = threading.get_ident()
        with self._changed:
            if self.ended:
                return
            self._kept.add(me)
            arrived()
            self._changed.notify_all()
            self._changed.wait_for(lambda: me not in self._kept)

    def let_go(self, thread: int) -> None:
        """Let a thread that is kept go on."""
        with self._changed:
            self._kept.discard(thread)
            self._changed.notify_all()

    def _rests(self) -> bool:
        waiting = any(q.qsize() and q.consumer not in self._kept for q in self._queues)
        return not (waiting or self._unstarted or self._at_work - self._kept)

    # -- what the queues and executors ask --------------------------------------------------------

    def take(self, jobs: Queue) -> Any:
        """The next job of a queue, for the thread that serves it and has done the one before.

        Raises:
            SystemExit: the run is over; the thread ends without a sound.
        """
        me = threading.get_ident()
        with self._changed:
            jobs.consumer = me
            self._at_work.discard(me)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self.ended or (self._open and jobs.qsize()))
            if self.ended:
                raise SystemExit
            self._at_work.add(me)
            here.engine = jobs.engine
            return jobs.take()

    def serve(self, jobs: Queue | Executor) -> None:
        """One more queue, or executor."""
        if isinstance(jobs, Queue):
            self._queues.append(jobs)
        else:
            self._executors.append(jobs)

    def submitted(self) -> None:
        """A task waits for a thread of an executor."""
        with self._changed:
            self._unstarted += 1

    def run(self, engine: int, task: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run a task of an engine in a thread of an executor."""
        me = threading.get_ident()
        here.engine = engine
        with self._changed:
            self._unstarted -= 1
            self._at_work.add(me)
        try:
            return task(*args, **kwargs)
        finally:
            with self._changed:
                self._at_work.discard(me)
                self._changed.notify_all()


current: Gate | None = None
"""The gate of the run that is going on."""


def _gate() -> Gate:
    if current is None:
        raise RuntimeError("kvconform's threads work only within a run of kvconform")
    return current


class Queue(queue.Queue[Any]):
    """A queue that is served between steps only.

    Attributes:
        consumer: the thread that serves it, as soon as there is one.
        engine: whose jobs these are.
    """

    def __init__(self, maxsize: int = 0) -> None:
        super().__init__(maxsize)
        self.consumer: int | None = None
        self._serves = _gate()
        self.engine = self._serves.whose()
        self._serves.serve(self)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """The next job; waits for it however little time is given, for time stands still."""
        return self._serves.take(self)

    def take(self) -> Any:
        """The next job, which is there."""
        return super().get(block=False)


class Executor(ThreadPoolExecutor):
    """An executor whose tasks the gate knows of; they are submitted by threads that it let in."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._serves = _gate()
        self._engine = self._serves.whose()
        self._serves.serve(self)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """See ``ThreadPoolExecutor``."""
        self._serves.submitted()
        return super().submit(self._serves.run, self._engine, fn, *args, **kwargs)
