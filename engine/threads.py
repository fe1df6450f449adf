"""Threads and processes of the target: they are real, and the driver gives them time.

Who uses processor time is at work; who waits with a time-out keeps real time, which a scenario
cannot move; what a process of its own does cannot be seen at all. All are asked before anything is
said about what never came.
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

LOOK = 0.001
"""Seconds between two looks at the threads."""

SETTLE = 0.1
"""Most seconds that the driver waits after a step for threads to come to rest."""

PATIENCE = 3.0
"""Seconds that threads get before it is said that something never came."""

_LEAST = 0.05
"""Seconds of patience that are left where it never bore fruit, and nothing is there to wait for."""

_patience = PATIENCE
_fruitless_settles = 0


def _children() -> set[int]:
    """Processes that this one started."""
    found: set[int] = set()
    for path in Path("/proc/self/task").glob("*/children"):
        try:
            found.update(map(int, path.read_text().split()))
        except OSError:
            continue  # the thread has ended
    return found


_known = {thread.ident for thread in threading.enumerate()}
_known_children = _children()
_theirs: set[int | None] = set()
_their_children: set[int] = set()


def begin() -> None:
    """A run begins: what is there now, and did not come in an earlier run, is not the target's."""
    global _known, _known_children
    _known = {thread.ident for thread in threading.enumerate()} - _theirs
    _known_children = _children() - _their_children


def end() -> None:
    """A run ends: what came in it is the target's, also in later runs."""
    _theirs.update(thread.ident for thread in mine())
    _their_children.update(_children() - _known_children)


def company() -> bool:
    """Whether anything of the target's is at work beside the hooks that are called."""
    return bool(mine()) or bool(_children() - _known_children)


def patience() -> float:
    """Seconds to wait before it is said that something never came."""
    return PATIENCE if company() else _patience


def learn(fruit: bool) -> None:
    """Whether waiting bore fruit."""
    global _patience
    _patience = PATIENCE if fruit else max(_LEAST, _patience / 4)


def mine() -> list[threading.Thread]:
    """The threads that the target started, in this run or in an earlier one."""
    if threading.active_count() <= len(_known):  # cheap, and true of most targets
        return []
    return [t for t in threading.enumerate() if t.ident not in _known]


def settle() -> None:
    """Wait until the target's threads do nothing, for a bounded time."""
    threads = mine()
    if not threads:
        return
    global _fruitless_settles
    # A thread that never rests is not waited for again and again.
    end = time.monotonic() + (SETTLE if _fruitless_settles < 5 else 3 * LOOK)
    before = _used(threads)
    while time.monotonic() < end:
        time.sleep(LOOK)
        now = _used(threads)
        if now == before:
            _fruitless_settles = 0
            return
        before = now
    _fruitless_settles += 1


def restless() -> list[str]:
    """Names of the target's threads and processes that may still do something in their own time."""
    processes = ["a process of its own"] if _children() - _known_children else []
    threads = mine()
    if not threads:
        return processes
    before = _used(threads)
    time.sleep(10 * LOOK)
    busy = {ident for ident, used in _used(threads).items() if used != before.get(ident)}
    frames = sys._current_frames()
    return processes + sorted(
        t.name
        for t in threads
        if t.is_alive() and (t.native_id in busy or _waits_long(frames.get(t.ident or 0)))
    )


def _used(threads: list[threading.Thread]) -> dict[int, int]:
    """Nanoseconds on a processor per thread."""
    used = {}
    for thread in threads:
        try:
            text = Path(f"/proc/self/task/{thread.native_id}/schedstat").read_text()
        except OSError:
            continue
        used[thread.native_id or 0] = int(text.split()[0])
    return used


def _waits_long(frame: object) -> bool:
    """Whether the innermost wait of a thread has a time-out longer than our patience."""
    innermost = True
    while frame is not None:
        timeout = getattr(frame, "f_locals", {}).get("timeout")
        if isinstance(timeout, int | float) and not isinstance(timeout, bool):
            return timeout > PATIENCE
        module = getattr(frame, "f_globals", {}).get("__name__", "")
        if module not in ("threading", "queue", "concurrent.futures.thread", "selectors"):
            # It waits in native code, or it has been seen to wait without a time-out.
            return innermost
        frame, innermost = getattr(frame, "f_back", None), False
    return False
