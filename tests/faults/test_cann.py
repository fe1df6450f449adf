"""The simulated CANN under the real torch_npu: what runs when, and what is complained of."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from kvconform.engine.oracle import UNFILLED
from kvconform.faults.devices import build, cann
from kvconform.faults.devices.cann import Cann
from kvconform.scenario.errors import UsageError

needs_npu = pytest.mark.skipif(cann.missing() is not None, reason=str(cann.missing()))

DEVICE = 31
BLOCKS, BLOCK = 8, 64


@pytest.fixture
def sim() -> Iterator[Cann]:
    """The simulation, with one device in use, which this thread has set."""
    loaded = cann.load()
    npu().set_device(DEVICE)
    loaded.compute(npu().current_stream())
    loaded.reset()
    loaded.use(DEVICE, 1)
    yield loaded
    loaded.reset()


def npu() -> Any:
    return vars(torch)["npu"]


def source() -> torch.Tensor:
    return torch.arange(BLOCKS * BLOCK, dtype=torch.float32).view(BLOCKS, BLOCK)


def blocks() -> torch.Tensor:
    """Device memory with known contents."""
    cache = torch.empty(BLOCKS, BLOCK, device=f"npu:{DEVICE}")
    cache.copy_(source().pin_memory())
    npu().synchronize()
    return cache


def pinned(count: int = 1) -> torch.Tensor:
    return torch.zeros(count, BLOCK).pin_memory()


def words(tensor: torch.Tensor) -> list[int]:
    return [int(w) for w in tensor.view(torch.int64).flatten()]


def wrongs(sim: Cann) -> list[str]:
    return [complaint.wrong for complaint in sim.complaints()]


# -- the build -------------------------------------------------------------------------------------


@pytest.mark.skipif(build.compiler() is None, reason="no C compiler")
class TestBuild:
    def test_compiles_once(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        folder = build.libraries()
        made = (folder / build.RUNTIME).stat().st_mtime_ns
        assert build.libraries() == folder
        assert (folder / build.RUNTIME).stat().st_mtime_ns == made
        assert [p.name for p in folder.parent.iterdir()] == [folder.name]  # nothing is left lying

    def test_who_is_second_takes_what_the_first_made(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        found: list[Path] = []
        together = [
            threading.Thread(target=lambda: found.append(build.libraries())) for _ in range(3)
        ]
        for thread in together:
            thread.start()
        for thread in together:
            thread.join()
        assert len(set(found)) == 1
        assert [p.name for p in found[0].parent.iterdir()] == [found[0].name]

    def test_the_sources_have_no_warnings(self, tmp_path: Path) -> None:
        cc = build.compiler()
        assert cc is not None
        sources = [str(p) for p in sorted(build.SOURCES.glob("*.c"))]
        build._run(
            [cc, "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-Wno-strict-prototypes", "-shared",
             "-fPIC", *sources, "-pthread"], tmp_path, "out.so",
        )  # fmt: skip

    def test_a_compiler_that_fails_is_told_of(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        monkeypatch.setenv("CC", "false")
        with pytest.raises(UsageError, match=r"could not be compiled with .*false"):
            build.libraries()


def test_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(UsageError, match="needs a C compiler"):
        build.libraries()


# -- streams ---------------------------------------------------------------------------------------


@needs_npu
def test_it_is_the_real_torch_npu(sim: Cann) -> None:
    assert sim.version == cann.version()
    assert cann.load() is sim
    assert npu().device_count() == cann.DEVICES


@needs_npu
def test_copies_run_at_once_where_nothing_is_held(sim: Cann) -> None:
    cache, host = blocks(), pinned()
    host[0].copy_(cache[2], non_blocking=True)
    assert torch.equal(host[0], source()[2])
    assert not sim.waiting()


@needs_npu
@pytest.mark.parametrize("ends", ["event", "stream", "device", "release", "run"])
def test_a_held_copy_runs_when_it_is_waited_for_or_released(sim: Cann, ends: str) -> None:
    cache, host = blocks(), pinned()
    side, event = npu().Stream(), npu().Event()
    sim.hold("copy")
    with npu().stream(side):
        host[0].copy_(cache[2], non_blocking=True)
        event.record()
    assert not event.query()
    assert not side.query()
    assert set(words(host)) == {UNFILLED}
    {
        "event": event.synchronize,
        "stream": side.synchronize,
        "device": npu().synchronize,
        "release": sim.release,
        "run": sim.run,
    }[ends]()
    assert event.query()
    assert side.query()
    assert torch.equal(host[0], source()[2])
    assert not sim.complaints()


@needs_npu
def test_nothing_overtakes_within_a_stream(sim: Cann) -> None:
    cache, host = blocks(), pinned()
    sim.hold("copy")
    sim.order(newest_first=True)
    with npu().stream(npu().Stream()):
        for block in (1, 2, 3):
            host[0].copy_(cache[block], non_blocking=True)
        seen = []
        while sim.run(1):
            seen.append(host[0, 0].item())
    assert seen == [float(source()[block, 0]) for block in (1, 2, 3)]


@needs_npu
@pytest.mark.parametrize("newest_first", [False, True])
def test_streams_are_reordered(sim: Cann, newest_first: bool) -> None:
    cache, host = blocks(), pinned()
    first, second = sorted((npu().Stream(), npu().Stream()), key=lambda s: s.stream_id)
    sim.hold("copy")
    for block, stream in ((1, first), (2, second)):
        with npu().stream(stream):
            host[0].copy_(cache[block], non_blocking=True)
    sim.order(newest_first)
    sim.release()
    last = 1 if newest_first else 2
    assert torch.equal(host[0], source()[last])


@needs_npu
def test_an_event_gives_an_order_between_streams(sim: Cann) -> None:
    cache, host = blocks(), pinned(2)
    side, ran, event = npu().Stream(), [], npu().Event()
    sim.hold("compute")
    sim.call(npu().current_stream(), lambda: ran.append(torch.equal(host[0], source()[1])))
    event.record()
    side.wait_event(event)
    with npu().stream(side):
        host[0].copy_(cache[1], non_blocking=True)
    assert not ran
    assert sim.waiting() == 3
    side.synchronize()
    assert ran == [False]
    assert torch.equal(host[0], source()[1])


@needs_npu
def test_the_same_without_the_event(sim: Cann) -> None:
    cache, host = blocks(), pinned(2)
    ran: list[bool] = []
    sim.hold("compute")
    sim.call(npu().current_stream(), lambda: ran.append(True))
    with npu().stream(npu().Stream()):
        host[0].copy_(cache[1], non_blocking=True)
    assert not ran
    assert torch.equal(host[0], source()[1])


@needs_npu
def test_work_goes_on_in_any_thread_that_waits(sim: Cann) -> None:
    cache, host = blocks(), pinned()
    side, ran, event = npu().Stream(), [], npu().Event()
    sim.hold("any")
    with npu().stream(side):
        sim.call(side, lambda: ran.append(threading.current_thread().name))
        host[0].copy_(cache[1], non_blocking=True)
        event.record()
    in_thread("waits", event.synchronize)
    assert ran == ["waits"]
    assert torch.equal(host[0], source()[1])


@needs_npu
@pytest.mark.parametrize("when_run", [True, False])
def test_a_copy_fails(sim: Cann, when_run: bool) -> None:
    cache, host = blocks(), pinned(2)
    side = npu().Stream()
    sim.fail(1, when_run)
    with npu().stream(side):
        if when_run:
            host[0].copy_(cache[1], non_blocking=True)
        with pytest.raises(RuntimeError, match="507899"):
            side.synchronize() if when_run else host[0].copy_(cache[1], non_blocking=True)
        side.synchronize()  # told once
        host[1].copy_(cache[2], non_blocking=True)
        side.synchronize()
    assert set(words(host[0])) != set(words(source()[1]))
    assert torch.equal(host[1], source()[2])


@needs_npu
def test_compute_streams_do_not_fail(sim: Cann) -> None:
    cache, host = blocks(), pinned()
    sim.fail(1)
    host[0].copy_(cache[1], non_blocking=True)
    npu().current_stream().synchronize()
    assert torch.equal(host[0], source()[1])


@needs_npu
def test_what_is_discarded_never_runs(sim: Cann) -> None:
    cache, host = blocks(), pinned()
    side = npu().Stream()
    sim.hold("copy")
    with npu().stream(side):
        host[0].copy_(cache[1], non_blocking=True)
    sim.discard(DEVICE)
    side.synchronize()
    assert set(words(host)) == {UNFILLED}
    assert not sim.waiting()


# -- complaints ------------------------------------------------------------------------------------


@needs_npu
def test_pageable_memory(sim: Cann) -> None:
    cache, host = blocks(), torch.zeros(1, BLOCK)
    host[0].copy_(cache[1])  # may be: it blocks
    assert wrongs(sim) == []
    host[0].copy_(cache[1], non_blocking=True)
    cache[1].copy_(host[0], non_blocking=True)
    assert wrongs(sim) == ["pageable", "pageable"]


@needs_npu
def test_a_source_that_is_used_again_too_early(sim: Cann) -> None:
    cache, host = blocks(), pinned()
    side = npu().Stream()
    sim.hold("copy")
    with npu().stream(side):
        cache[1].copy_(host[0], non_blocking=True)
    host.fill_(7.0)
    side.synchronize()
    assert wrongs(sim) == ["changed"]
    with npu().stream(side):
        cache[1].copy_(host[0], non_blocking=True)
    side.synchronize()
    host.fill_(8.0)
    assert wrongs(sim) == []


@needs_npu
def test_a_source_that_the_device_fills_first(sim: Cann) -> None:
    cache, host = blocks(), pinned()
    side = npu().Stream()
    sim.hold("copy")
    with npu().stream(side):
        host[0].copy_(cache[1], non_blocking=True)
        cache[2].copy_(host[0], non_blocking=True)
        host[0].copy_(cache[3], non_blocking=True)
    side.synchronize()
    assert wrongs(sim) == []
    assert torch.equal(cache[2].cpu(), source()[1])
    assert torch.equal(host[0], source()[3])


@needs_npu
def test_a_thread_that_sets_no_device(sim: Cann) -> None:
    side = npu().Stream()
    in_thread("sets none", lambda: npu().Stream().synchronize())
    assert wrongs(sim) == ["foreign-device"]

    def right() -> None:
        npu().set_device(DEVICE)
        npu().Event().record(side)
        side.synchronize()

    in_thread("sets it", right)
    assert wrongs(sim) == []


def acl(sim: Cann) -> tuple[ctypes.CDLL, Callable[[str, int], int]]:
    """The API below torch, whose allocators keep what is freed."""
    runtime = sim._run

    def allocate(how: str, size: int) -> int:
        at = ctypes.c_void_p()
        arguments = (size, 0) if how == "aclrtMalloc" else (size,)
        assert runtime[how](ctypes.byref(at), *arguments) == 0
        return int(at.value or 0)

    return runtime, allocate


def copy(sim: Cann, to: int, source: int, size: int, kind: int) -> int:
    stream = ctypes.c_void_p(npu().current_stream().npu_stream)
    size_t, pointer = ctypes.c_size_t, ctypes.c_void_p
    return int(
        sim._run.aclrtMemcpyAsync(
            pointer(to), size_t(size), pointer(source), size_t(size), kind, stream
        )
    )


@needs_npu
def test_memory_that_is_freed_too_early(sim: Cann) -> None:
    runtime, allocate = acl(sim)
    device, host = allocate("aclrtMalloc", 256), allocate("aclrtMallocHost", 256)
    sim.hold()
    assert copy(sim, host, device, 256, kind=2) == 0
    assert runtime.aclrtFreeHost(ctypes.c_void_p(host)) == 0
    assert wrongs(sim) == ["freed-in-flight"]
    assert allocate("aclrtMallocHost", 256) != host  # not given out while it is needed
    sim.release()
    assert wrongs(sim) == ["freed"]
    assert copy(sim, host, device, 256, kind=2) != 0
    assert wrongs(sim) == ["freed"]
    assert runtime.aclrtFree(ctypes.c_void_p(device)) == 0
    assert wrongs(sim) == []


@needs_npu
def test_copies_beyond_their_memory(sim: Cann) -> None:
    _, allocate = acl(sim)
    device, host = allocate("aclrtMalloc", 256), allocate("aclrtMallocHost", 512)
    assert copy(sim, host, device + 128, 256, kind=2) != 0
    assert copy(sim, device, host, 512, kind=1) != 0
    assert copy(sim, host, device, 256, kind=1) != 0  # the wrong way round
    assert wrongs(sim) == ["out-of-range"] * 3
    assert copy(sim, host, device, 256, kind=2) == 0
    assert wrongs(sim) == []


@needs_npu
def test_memory_that_is_pinned_where_it_lies(sim: Cann) -> None:
    runtime, _ = acl(sim)
    cache, buffer = blocks(), torch.zeros(1, BLOCK)
    at, size = ctypes.c_void_p(buffer.data_ptr()), ctypes.c_uint64(buffer.nbytes)
    assert runtime.aclrtHostRegister(at, size, 0, None) == 0
    sim.hold()
    assert copy(sim, buffer.data_ptr(), cache[1].data_ptr(), 4 * BLOCK, kind=2) == 0
    assert wrongs(sim) == []
    assert runtime.aclrtHostUnregister(at) == 0
    assert wrongs(sim) == ["freed-in-flight"]
    assert copy(sim, buffer.data_ptr(), cache[1].data_ptr(), 4 * BLOCK, kind=2) == 0
    assert wrongs(sim) == ["pageable"]


def in_thread(name: str, what: Callable[[], None]) -> None:
    thread = threading.Thread(target=what, name=name)
    thread.start()
    thread.join()
