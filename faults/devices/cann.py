"""The simulated CANN under the real torch_npu, and the orders that it obeys.

What it models is said in ``csrc/streams.c``: streams are queues of work that runs at once or,
where they are held, when it is told to or waited for. It models the API, not the hardware.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import importlib.metadata
import importlib.util
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from kvconform.faults.devices import build
from kvconform.scenario.actions import Streams
from kvconform.scenario.errors import UsageError

DEVICES = 32
"""How many there are. Device 0 is nobody's: it is what a thread gets that has set none."""

_STREAMS = {"compute": 1, "copy": 2, "any": 3}

Wrong = Literal["freed", "freed-in-flight", "out-of-range", "pageable", "changed", "foreign-device"]

_WRONG: dict[int, tuple[Wrong, str]] = {
    1: ("freed", "a copy of {bytes} bytes uses memory that was freed"),
    2: ("freed-in-flight", "{bytes} bytes were freed while a copy that touches them was waiting"),
    3: ("out-of-range", "a copy of {bytes} bytes is not within memory of the kind that it is for"),
    4: ("pageable", "an asynchronous copy of {bytes} bytes uses host memory that is not pinned"),
    5: (
        "changed",
        "{bytes} bytes were changed by the host before the copy that was to read them ran",
    ),
    6: ("foreign-device", "a thread used {device}, {set}"),
}


@dataclass(frozen=True, slots=True)
class Complaint:
    """Something that must not be done with a device.

    Attributes:
        wrong: what it was.
        text: the same in words.
        device: whose stream or memory; -1: of none.
    """

    wrong: Wrong
    text: str
    device: int


class _Complaint(ctypes.Structure):
    _fields_ = (
        ("wrong", ctypes.c_int32),
        ("device", ctypes.c_int32),
        ("set", ctypes.c_int32),
        ("stream", ctypes.c_int32),
        ("bytes", ctypes.c_uint64),
    )


_Complaints = _Complaint * 64
_Call = ctypes.CFUNCTYPE(None, ctypes.c_int64)


def missing() -> str | None:
    """Why devices cannot be simulated here, in a sentence; None: they can."""
    if importlib.util.find_spec("torch_npu") is None:
        return "The simulated device needs torch_npu, which is not installed."
    if build.compiler() is None:
        return "The simulated device needs a C compiler (cc, gcc or clang), and none is here."
    return None


def version() -> str | None:
    """The version of torch_npu that is installed; it is not imported for that."""
    try:
        return importlib.metadata.version("torch_npu")
    except importlib.metadata.PackageNotFoundError:
        return None


def prepare() -> None:
    """Before torch is imported: it must not import torch_npu by itself, for that wants CANN."""
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    # No thread between torch and CANN: calls come when they are made.
    os.environ["TASK_QUEUE_ENABLE"] = "0"


@functools.cache
def load() -> Cann:
    """The simulated CANN, with torch_npu imported on it; the same one each time.

    Raises:
        UsageError: torch_npu is not installed, or there is no C compiler.
    """
    reason = missing()
    if reason is not None:
        raise UsageError(reason)
    prepare()
    folder = build.libraries()
    # Found by their names from now on, whoever is linked against them.
    runtime = ctypes.CDLL(str(folder / build.RUNTIME), ctypes.RTLD_GLOBAL)
    for name in build.EMPTY:
        ctypes.CDLL(str(folder / name), ctypes.RTLD_GLOBAL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of an environment that CANN would set
        module = importlib.import_module("torch_npu")
    return Cann(runtime, str(module.__version__))


class Cann:
    """What the driver of the simulation may do; all of it deterministic.

    ``device``: one device; None: all.

    Attributes:
        version: of the torch_npu on it.
    """

    def __init__(self, runtime: ctypes.CDLL, version: str) -> None:
        self.version = version
        self._run = runtime
        runtime.sim_call.argtypes = (ctypes.c_void_p, _Call, ctypes.c_int64)
        runtime.sim_compute.argtypes = (ctypes.c_void_p,)
        runtime.sim_touched.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
        self._complaints = ctypes.c_int64.in_dll(runtime, "sim_complaints")
        self._copies = ctypes.c_int64.in_dll(runtime, "sim_copies")
        self._deferred = ctypes.c_int64.in_dll(runtime, "sim_deferred")
        self._failures = ctypes.c_int64.in_dll(runtime, "sim_failures")
        self._calls: dict[int, Callable[[], None]] = {}
        self._called = _Call(self._called_back)
        self._next = 0

    @property
    def copies(self) -> int:
        """Asynchronous copies that were asked for so far."""
        return self._copies.value

    @property
    def deferred(self) -> int:
        """Of these, those that did not run at once."""
        return self._deferred.value

    @property
    def failures(self) -> int:
        """Those that failed, or will when they run, because they were told to."""
        return self._failures.value

    def compute(self, stream: Any) -> None:
        """This stream of ``torch.npu`` is its device's compute stream."""
        self._run.sim_compute(stream.npu_stream)

    def use(self, first: int, count: int) -> None:
        """So many devices from ``first`` on are in use, and who uses another is complained of.

        ``count`` 0: any may be used.
        """
        self._run.sim_use(first, count)

    def hold(self, streams: Streams = "any", device: int | None = None) -> None:
        """From now on work of these streams waits until it is let run or waited for."""
        self._run.sim_hold(_index(device), _STREAMS[streams], 1)

    def release(self, streams: Streams = "any", device: int | None = None) -> None:
        """These streams are held no more, and what waits in them runs."""
        self._run.sim_hold(_index(device), _STREAMS[streams], 0)

    def order(self, newest_first: bool) -> None:
        """Of the streams that can get on, the one that was made last does first; or made first."""
        self._run.sim_order(newest_first)

    def run(
        self, most: int | None = None, streams: Streams = "any", device: int | None = None
    ) -> int:
        """Run up to ``most`` pieces of what waits, held or not; how many ran."""
        return int(
            self._run.sim_run(_index(device), _STREAMS[streams], -1 if most is None else most)
        )

    def fail(self, copies: int, when_run: bool = True, device: int | None = None) -> None:
        """The next copies fail that are not on a compute stream: when they run, or at the call.

        One that fails when it runs moves nothing, and who waits for it first hears of it.
        """
        self._run.sim_fail(_index(device), copies, 2 if when_run else 1)

    def waiting(self, device: int | None = None) -> int:
        """Pieces of work that have not run."""
        return int(self._run.sim_waiting(_index(device)))

    def touched(self, address: int, count: int) -> bool:
        """Whether work that waits touches these bytes."""
        return bool(self._run.sim_touched(address, count))

    def call(self, stream: Any, what: Callable[[], None]) -> None:
        """Have a stream of ``torch.npu`` do ``what``, in its order; it must not raise."""
        self._next += 1
        self._calls[self._next] = what
        self._run.sim_call(stream.npu_stream, self._called, self._next)

    def discard(self, device: int | None = None) -> None:
        """Who used the device is gone: what waits is forgotten, and so are failures."""
        self._run.sim_discard(_index(device))
        if device is None:
            self._calls.clear()

    def reset(self) -> None:
        """Nothing waits, is held or fails, and nobody complains."""
        self.discard()
        self.release()
        self.order(newest_first=False)
        self.use(0, 0)
        self.complaints()

    def complaints(self) -> list[Complaint]:
        """What was done wrong since this was last asked."""
        if not self._complaints.value:
            return []
        found = _Complaints()
        count = self._run.sim_take_complaints(found)
        return [_in_words(one) for one in found[:count]]

    def _called_back(self, number: int) -> None:
        what = self._calls.pop(number, None)
        if what is not None:
            what()


def _index(device: int | None) -> int:
    return -1 if device is None else device


def _in_words(said: _Complaint) -> Complaint:
    wrong, text = _WRONG[said.wrong]
    named = {
        "bytes": said.bytes,
        "device": f"device {said.device}" if said.device >= 0 else "a device",
        "set": "which is nobody's: it has set no device"
        if said.set == said.device
        else f"and has set {f'device {said.set}' if said.set >= 0 else 'none'}",
    }
    return Complaint(wrong, text.format(**named), said.device)
