"""The house rules: which folder may know which, read from the source, and what no file may hold.

`FOLDERS` is the table of allowed arrows. To let one more arrow in, change the table and say why.
"""

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Folder:
    """What the modules of one folder may import besides themselves and the standard library."""

    ours: frozenset[str]
    """Units of ours, named as the folders are; "" is the package `kvconform` itself."""
    others: frozenset[str] | None = None
    """Third-party packages; None allows any."""
    never: frozenset[str] = frozenset()
    """Third-party packages that are not allowed even so."""

    def __str__(self) -> str:
        ours = sorted(name or "kvconform" for name in self.ours)
        others = ["any third-party package"] if self.others is None else sorted(self.others)
        but = f", but never {' or '.join(sorted(self.never))}" if self.never else ""
        return ", ".join(["itself", "the standard library", *ours, *others]) + but


def folder(*ours: str, others: str | None = None, never: str = "") -> Folder:
    allowed = None if others is None else frozenset(others.split())
    return Folder(frozenset(ours), allowed, frozenset(never.split()))


FOLDERS = {
    "scenario": folder(others=""),
    # vLLM's KV events are structs of msgspec, and go to subscribers by it.
    "engine": folder("", "scenario", others="vllm torch numpy msgspec"),
    "faults": folder("", "engine", "scenario"),
    "conformance": folder("", "faults", "engine", "scenario"),
    "reports": folder("", "scenario", never="vllm torch"),
    # Beside vLLM and torch only what vLLM itself needs, and the device and transport of choice.
    "connectors/ascend": folder(others="vllm torch torch_npu numpy zmq mooncake"),
    "connectors/zoo": folder("connectors/ascend", others="vllm torch numpy"),
    "connectors/targets": folder("connectors/zoo", "scenario"),
    "connectors": folder(others=""),
    "cli": folder(
        "",
        "scenario",
        "engine",
        "faults",
        "conformance",
        "reports",
        "connectors",
        "connectors/ascend",
        "connectors/zoo",
        "connectors/targets",
    ),
    "kvconform": folder("cli", others=""),
}
TOP = sorted({name.split("/")[0] for name in FOLDERS} - {"kvconform"})


# --- reading the source --------------------------------------------------------------------------


def files(*suffixes: str) -> Iterator[Path]:
    """The files of the repository with one of these suffixes (or all), links left out."""
    for where, dirs, names in os.walk(ROOT):
        here = Path(where)
        dirs[:] = sorted(d for d in dirs if is_source(here / d))
        for name in sorted(names):
            path = here / name
            if not path.is_symlink() and (not suffixes or path.suffix in suffixes):
                yield path


def is_source(path: Path) -> bool:
    """Whether this folder holds source, not something that a run, a build or an install left."""
    if path.is_symlink() or path.suffix == ".egg-info" or (path / "pyvenv.cfg").exists():
        return False
    if path.name.startswith("."):
        return path.name in (".ci", ".github")
    return path.name not in ("__pycache__", "build", "dist", "node_modules")


def label(path: Path) -> str:
    """The path from the root of the repository, as messages show it."""
    return path.relative_to(ROOT).as_posix()


def home(path: Path) -> str | None:
    """The entry of `FOLDERS` in which this file lies, or None."""
    parts = path.relative_to(ROOT).parts[:-1]
    for depth in (2, 1):
        if len(parts) >= depth and "/".join(parts[:depth]) in FOLDERS:
            return "/".join(parts[:depth])
    return None


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Each imported name with its line, inside functions too; relative ones begin with a dot.

    `from a import b` gives `a.b`, since `b` may be a module.
    """
    for node in ast.walk(ast.parse(path.read_text("utf-8"), label(path))):
        match node:
            case ast.Import(names=names):
                for alias in names:
                    yield node.lineno, alias.name
            case ast.ImportFrom(module=module, names=names, level=level):
                for alias in names:
                    yield node.lineno, "." * level + f"{module or ''}.{alias.name}".strip(".")
            case ast.Call(
                func=ast.Attribute(attr="import_module")
                | ast.Name(id="import_module" | "__import__"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                yield node.lineno, name


def unit(name: str) -> str | None:
    """The entry of `FOLDERS` to which an imported name of ours leads; None when it is not ours."""
    first, *rest = name.split(".")
    if first != "kvconform":
        return None
    for depth in (2, 1):
        if len(rest) >= depth and "/".join(rest[:depth]) in FOLDERS:
            return "/".join(rest[:depth])
    return ""


def arrow_problem(source: str, name: str) -> str | None:
    """What is wrong with a module of the folder `source` importing `name`, or None."""
    rule = FOLDERS[source]
    target = unit(name)
    if target is not None:
        if target == source or target in rule.ours:
            return None
        return f"{source} may not know {target or 'kvconform'}"
    package = name.split(".")[0]
    if not package or package in sys.stdlib_module_names:
        return None
    if package in rule.never or (rule.others is not None and package not in rule.others):
        return f"{source} may not know {package}"
    return None


def report(problems: list[str], advice: str) -> None:
    """Fail with the list of problems and what to do about them."""
    if problems:
        pytest.fail("\n".join([*problems, advice]), pytrace=False)


def matches(pattern: str, paths: Iterator[Path]) -> list[str]:
    """Where the pattern occurs, as `file:line: text`."""
    found = []
    for path in paths:
        text = path.read_text("utf-8", errors="ignore")
        for number, line in enumerate(text.splitlines(), 1):
            if re.search(pattern, line):
                found.append(f"{label(path)}:{number}: {line.strip()[:120]}")
    return found


# --- the arrows ----------------------------------------------------------------------------------


@pytest.mark.parametrize("source", FOLDERS)
def test_arrows_run_one_way(source: str) -> None:
    problems = [
        f"{label(path)}:{line}: imports {name}: {problem}"
        for path in files(".py")
        if home(path) == source
        for line, name in imports(path)
        if (problem := arrow_problem(source, name))
    ]
    report(problems, f"{source} may know: {FOLDERS[source]}.")


def test_every_module_of_ours_has_a_place_in_the_table() -> None:
    links = {p.name for p in (ROOT / "kvconform").iterdir() if p.is_symlink()}
    assert links == set(TOP), "the links in kvconform/ and the table FOLDERS name the same folders"


def test_only_the_entry_point_knows_the_command_line() -> None:
    problems = [
        f"{label(path)}:{line}: imports {name}"
        for path in files(".py")
        if home(path) not in (None, "cli") and path != ROOT / "kvconform" / "__main__.py"
        for line, name in imports(path)
        if unit(name) == "cli"
    ]
    report(problems, "cli sits on top: only kvconform/__main__.py imports it.")


def test_imports_of_ours_are_absolute_and_under_one_name() -> None:
    problems = [
        f"{label(path)}:{line}: imports {name}"
        for path in files(".py")
        for line, name in imports(path)
        if name.startswith(".") or name.split(".")[0] in TOP
    ]
    report(problems, "Write `from kvconform.… import …`.")


# --- what no file may hold -----------------------------------------------------------------------


def test_only_compat_looks_at_a_vllm_version() -> None:
    pattern = (
        r"\bvllm\.__version__|\bvllm\.version\b|from vllm import .*\b__version__|"
        r"\bversion\(\s*['\"]vllm"
    )
    compat = ROOT / "engine" / "compat"
    sources = (p for p in files(".py") if compat not in p.parents and p != Path(__file__).resolve())
    report(matches(pattern, sources), "Ask kvconform.engine.compat instead.")


def test_only_the_engine_unpickles() -> None:
    pattern = r"\b[c]?pickle\.loads?\b|from c?pickle import .*\bloads?\b"
    own_loop = ROOT / "benchmarks"  # it does the same work as the engine
    places = (ROOT / "engine", own_loop, ROOT / "tests" / "engine", Path(__file__).resolve())
    sources = (p for p in files(".py") if p not in places and not set(places) & set(p.parents))
    report(
        matches(pattern, sources),
        "A pickle runs what it holds. Only the wire between scheduler and worker is pickled.",
    )


@pytest.mark.parametrize("text", ["../" + "shared", "/" + "work/"])
def test_no_file_points_outside_the_repository(text: str) -> None:
    report(matches(re.escape(text), files()), "The repository stands alone: no such path.")


# --- what importing does -------------------------------------------------------------------------


def probe(code: str) -> list[str]:
    """Run code in a fresh interpreter at the root; the JSON list on its last line of output."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    answer: list[str] = json.loads(done.stdout.splitlines()[-1])
    return answer


IMPORT_ALL = """
import importlib, json, os, pkgutil, sys
import kvconform
problems = []
def load(name):
    try:
        return importlib.import_module(name)
    except ImportError as error:  # an optional third-party package may be missing
        if (error.name or "kvconform").startswith("kvconform"):
            problems.append(f"{name} cannot be imported: {error}")
def walk(package):
    for found in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        if not found.name.endswith(".__main__"):
            module = load(found.name)
            if module is not None and found.ispkg:
                walk(module)
walk(kvconform)
ours = tuple(os.path.realpath(p) + os.sep for p in [*TOP, "kvconform"])
for name, module in list(sys.modules.items()):
    path = os.path.realpath(getattr(module, "__file__", None) or os.devnull)
    if path.startswith(ours) and name.split(".")[0] != "kvconform":
        problems.append(f"{path} is loaded as {name}")
print()
print(json.dumps(problems))
"""


def test_every_module_loads_under_the_one_name() -> None:
    report(
        probe(IMPORT_ALL.replace("TOP", repr(TOP))),
        "Each module of ours is loaded once, as kvconform.…",
    )


def test_the_command_line_starts_without_vllm_and_torch() -> None:
    loaded = probe(
        "import json, sys, kvconform.cli.main\n"
        "print(json.dumps(sorted({'vllm', 'torch'} & set(sys.modules))))"
    )
    assert loaded == [], "import vLLM and torch inside the command that needs them"
