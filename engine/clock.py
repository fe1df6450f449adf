"""Virtual time: leases, time-outs and heartbeats expire because the scenario says so.

Within a run, the modules of the target see this clock instead of the real one, wherever they use
``time`` by module or by name. It stands still but for ``Tick`` actions, the drain, and whoever
sleeps. A thread of the target that sleeps really waits, for a moment at most: it must not turn the
clock on behind the scenario's back. Waits on queues, events and sockets keep real time.

A target can still ask a clock that is not ours: by an import within a function, from native code,
in another process. So it is counted whether ours was asked, and whether the target's code speaks of
clocks at all; who does, and never asked, may have a lease that we cannot let run out.
"""

from __future__ import annotations

import datetime
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

from kvconform.engine import threads

EPOCH = 1_700_000_000.0
"""What the clock shows at the start of a run, in seconds; ``time.time()`` must look like a date."""

_NAP = 0.002
"""Most seconds that a thread of the target really sleeps."""


class Clock:
    """The time of one run.

    Attributes:
        now: seconds since :data:`EPOCH`.
        reads: how often the target asked.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.reads = 0
        self._driver = threading.get_ident()

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds

    def read(self) -> float:
        """The time, as every clock of the target shows it."""
        self.reads += 1
        return EPOCH + self.now

    def sleep(self, seconds: float) -> None:
        """The target sleeps."""
        if threading.get_ident() != self._driver:
            time.sleep(min(seconds, _NAP))
        elif threads.mine():
            # It may wait for a thread of its own, which needs real time for what it does.
            time.sleep(min(seconds, _NAP))
            self.advance(min(seconds, _NAP))
        else:
            self.advance(seconds)


active: Clock | None = None
"""The clock of the run that is going on; outside of runs, time is real."""


def _reader(real: Callable[[], Any], per_second: int) -> Callable[[], Any]:
    def read() -> Any:
        clock = active
        if clock is None:
            return real()
        return clock.read() if per_second == 1 else int(clock.read() * per_second)

    return read


def _sleep(seconds: float) -> None:
    clock = active
    if clock is None:
        time.sleep(seconds)
    else:
        clock.sleep(seconds)


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "time": _reader(time.time, 1),
    "monotonic": _reader(time.monotonic, 1),
    "perf_counter": _reader(time.perf_counter, 1),
    "time_ns": _reader(time.time_ns, 10**9),
    "monotonic_ns": _reader(time.monotonic_ns, 10**9),
    "perf_counter_ns": _reader(time.perf_counter_ns, 10**9),
    "sleep": _sleep,
}


class _DateTime(datetime.datetime):
    """Stands for the class ``datetime``: its now is ours."""

    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> _DateTime:
        clock = active
        return super().now(tz) if clock is None else cls.fromtimestamp(clock.read(), tz)

    @classmethod
    def utcnow(cls) -> _DateTime:
        return cls.now(datetime.UTC).replace(tzinfo=None)

    @classmethod
    def today(cls) -> _DateTime:
        return cls.now()


class _DateTimes:
    """Stands for the module ``datetime``."""

    datetime = _DateTime

    def __getattr__(self, name: str) -> Any:
        return getattr(datetime, name)


_REPLACEMENTS: dict[Any, Any] = {
    getattr(time, name): function for name, function in _FUNCTIONS.items()
}
_CLOCKS = frozenset(
    {*_FUNCTIONS, "datetime", "now", "Timer", "call_later", "sched", "clock", "clock_gettime",
     "Popen", "Process", "timeout"}
)  # fmt: skip
"""Names by which code speaks of time, or of processes that have a time of their own."""


class _Time:
    """Stands for the module ``time``; what is not about the clock is the module's own."""

    def __getattr__(self, name: str) -> Any:
        return _FUNCTIONS.get(name) or getattr(time, name)


_time = _Time()
_REPLACEMENTS |= {time: _time, datetime: _DateTimes(), datetime.datetime: _DateTime}
_seen: set[str] = set()
_speaks: dict[str, bool] = {}


def packages_of(cls: type) -> frozenset[str]:
    """Whose modules are the target's: those of its class and of the bases that it brings along.

    A class of vLLM, or of this project, brings the package that it is in; any other the whole
    distribution, for its helpers may be anywhere.
    """
    found = set()
    for base in cls.__mro__:
        module = base.__module__
        top = module.partition(".")[0]
        if top in ("builtins", "abc", "typing", "enum", "threading"):
            continue
        if top in ("vllm", "kvconform"):
            if module.endswith((".v1.base", ".v1.metrics")):
                continue
            found.add(getattr(sys.modules.get(module), "__package__", None) or module)
        else:
            found.add(top)
    return frozenset(found)


def redirect(packages: Iterable[str]) -> None:
    """Show the virtual clock to all loaded modules of these packages, from now on.

    Outside of runs they see real time as before. Call it again when more may have been imported.
    """
    prefixes = tuple(p + "." for p in packages)
    names = set(packages)
    for name in list(sys.modules):
        if name in _seen or not (name in names or name.startswith(prefixes)):
            continue
        _seen.add(name)
        module = sys.modules[name]
        for key, value in list(vars(module).items()):
            if _is_clock(value):
                setattr(module, key, _REPLACEMENTS[value])
        for function in _functions(module):
            _speaks[name] = _speaks.get(name, False) or _mentions(function.__code__)
            if function.__defaults__:
                function.__defaults__ = tuple(map(_ours, function.__defaults__))
            for cell in function.__closure__ or ():  # where dataclasses keep default factories
                try:
                    cell.cell_contents = _ours(cell.cell_contents)
                except ValueError:  # it is empty
                    continue
            if function.__kwdefaults__:
                function.__kwdefaults__ = {
                    key: _ours(value) for key, value in function.__kwdefaults__.items()
                }


def speaks_of_time(packages: Iterable[str]) -> bool:
    """Whether the code of these packages, as far as it is loaded, speaks of clocks."""
    prefixes, names = tuple(p + "." for p in packages), set(packages)
    return any(
        speaks for name, speaks in _speaks.items() if name in names or name.startswith(prefixes)
    )


def _is_clock(value: Any) -> bool:
    try:
        return value in _REPLACEMENTS
    except TypeError:  # cannot be hashed
        return False


def _ours(value: Any) -> Any:
    return _REPLACEMENTS[value] if _is_clock(value) else value


def _functions(module: ModuleType) -> Iterator[FunctionType]:
    """The functions and methods that a module defines."""
    for value in list(vars(module).values()):
        if getattr(value, "__module__", None) != module.__name__:
            continue
        inner = vars(value).values() if isinstance(value, type) else (value,)
        for one in list(inner):
            if isinstance(one, property):
                one = one.fget
            one = getattr(one, "__func__", one)
            if isinstance(one, FunctionType):
                yield one


def _mentions(code: CodeType) -> bool:
    if not _CLOCKS.isdisjoint(code.co_names):
        return True
    return any(_mentions(inner) for inner in code.co_consts if isinstance(inner, CodeType))
