"""The simulated CANN's libraries: compiled on first use, and kept for the next time."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from kvconform.scenario.errors import UsageError

SOURCES = Path(__file__).parent / "csrc"

RUNTIME = "libascendcl.so"
"""Where everything is."""

EMPTY = (
    "libacl_op_compiler.so",
    "libhccl.so",
    "libge_runner.so",
    "libgraph.so",
    "libacl_tdt_channel.so",
)
"""What torch_npu is linked against besides; it takes from them what the runtime has."""


def compiler() -> str | None:
    """The machine's C compiler: ``$CC``, or what is found first; None: there is none."""
    names = [os.environ["CC"]] if os.environ.get("CC") else ["cc", "gcc", "clang"]
    return next(filter(None, map(shutil.which, names)), None)


def libraries() -> Path:
    """The folder with the libraries, compiled if need be.

    Several processes may ask at once: each compiles in a folder of its own, and the first to be
    done gives it its name.

    Raises:
        UsageError: there is no C compiler, or it does not take the sources.
    """
    cc = compiler()
    if cc is None:
        raise UsageError(
            "The simulated CANN needs a C compiler (cc, gcc or clang), and none is here."
        )
    folder = _cache() / f"cann-{_key(cc)}"
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix="cann-", dir=folder.parent))
    try:
        _compile(cc, scratch)
        try:
            scratch.rename(folder)
        except OSError:  # another was first
            if not folder.is_dir():
                raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return folder


def _cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = Path(home) / "kvconform"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return Path(".kvconform")
    return folder if os.access(folder, os.W_OK) else Path(".kvconform")


def _key(cc: str) -> str:
    """A name that changes with the sources and with the compiler."""
    said = subprocess.run([cc, "--version"], capture_output=True, check=False).stdout
    parts = [cc.encode(), said, Path(__file__).read_bytes()]
    parts += [path.read_bytes() for path in sorted(SOURCES.glob("*.[ch]"))]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def _compile(cc: str, folder: Path) -> None:
    sources = [str(path) for path in sorted(SOURCES.glob("*.c"))]
    shared = [cc, "-shared", "-fPIC"]
    # No warnings of the newest compilers about functions that say nothing of their arguments.
    _run([*shared, "-std=gnu11", "-O2", "-w", "-Wl,-soname," + RUNTIME, *sources, "-pthread"],
         folder, RUNTIME)  # fmt: skip
    for name in EMPTY:
        # Functions that are looked up in one of these are found in what it is linked against.
        _run([*shared, "-x", "c", os.devnull, "-x", "none", f"-Wl,-soname,{name}",
              "-Wl,--no-as-needed", "-Wl,-rpath,$ORIGIN", RUNTIME], folder, name)  # fmt: skip


def _run(command: list[str], folder: Path, output: str) -> None:
    ran = subprocess.run([*command, "-o", output], cwd=folder, capture_output=True, check=False)
    if ran.returncode:
        said = ran.stderr.decode(errors="replace").strip()
        raise UsageError(f"The simulated CANN could not be compiled with {command[0]}: {said}")
