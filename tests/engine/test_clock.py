"""Virtual time: the target's modules see it, nobody else does, and it moves when told."""

from __future__ import annotations

import importlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from kvconform.engine import clock, threads
from kvconform.engine.clock import Clock

SOURCE = """
import time
import time as clock
from time import monotonic, sleep as nap

from datetime import UTC, datetime

def readings(now=time.time):
    return (time.time(), clock.perf_counter(), monotonic(), time.monotonic_ns() / 1e9, now(),
            datetime.now(UTC).timestamp(), datetime.now().timestamp())
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A module of a target, seen by a clock that is active."""
    (tmp_path / "timed.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    found = importlib.import_module("timed")
    clock.redirect({"timed"})
    monkeypatch.setattr(clock, "active", Clock())
    yield found
    del sys.modules["timed"]
    clock._seen.discard("timed")
    clock._speaks.pop("timed", None)


def test_all_clocks_show_the_same_and_move_when_told(module: ModuleType) -> None:
    assert clock.active is not None
    before = module.readings()
    assert before == pytest.approx([before[0]] * len(before))
    clock.active.advance(61)
    assert module.readings() == pytest.approx([t + 61 for t in before])


def test_sleeping_moves_the_clock_and_takes_no_time(module: ModuleType) -> None:
    assert clock.active is not None
    real = importlib.import_module("time")  # our own global may be shown the clock as well
    began = real.monotonic()
    module.nap(3600)
    assert clock.active.now == 3600
    assert real.monotonic() - began < 60


def test_a_thread_that_sleeps_does_not_move_the_clock(module: ModuleType) -> None:
    assert clock.active is not None
    thread = threading.Thread(target=module.nap, args=(3600,))
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    assert clock.active.now == 0


def test_outside_of_runs_time_is_real(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "active", None)
    real = importlib.import_module("time")
    now = (real.time(), real.perf_counter(), real.monotonic(), real.monotonic(), *[real.time()] * 3)
    assert module.readings() == pytest.approx(now, abs=60)


def test_whether_a_clock_was_asked_and_whether_the_code_speaks_of_one(module: ModuleType) -> None:
    assert clock.active is not None
    assert clock.active.reads == 0
    assert clock.speaks_of_time({"timed"})
    module.readings()
    assert clock.active.reads > 0
    assert not clock.speaks_of_time({"timeless"})


def test_what_is_the_targets() -> None:
    class Mine(Iterator[int]): ...

    assert clock.packages_of(Mine) >= {__name__.partition(".")[0]}
    zoo = pytest.importorskip(
        "kvconform.connectors.zoo.wrong_block",
        reason="the zoo needs vLLM 0.18",
        exc_type=ImportError,
    )
    packages = clock.packages_of(zoo.WrongBlock)
    assert packages == {"kvconform.connectors.zoo", "kvconform.connectors.ascend"}


def test_a_thread_with_a_long_time_out_is_restless_and_one_without_is_not() -> None:
    threads.begin()
    started = threading.Barrier(3)
    end = threading.Event()

    def wait(timeout: float | None) -> None:
        started.wait(60)
        end.wait(timeout)

    waiting = [
        threading.Thread(target=wait, args=(seconds,), name=name)
        for name, seconds in (("for ever", None), ("an hour", 3600.0))
    ]
    for thread in waiting:
        thread.start()
    try:
        started.wait(60)
        threads.settle()
        assert {t.name for t in threads.mine()} >= {"for ever", "an hour"}
        assert "an hour" in threads.restless()
        assert "for ever" not in threads.restless()
    finally:
        end.set()
        for thread in waiting:
            thread.join(60)


def test_a_process_of_the_targets_is_company() -> None:
    threads.begin()
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as child:
        assert threads.company()
        threads.begin()
        assert not threads.company()  # what was there before a run is nobody's of ours
        threads._known_children.discard(child.pid)
        assert "a process of its own" in threads.restless()
        child.communicate()
    assert "a process of its own" not in threads.restless()
