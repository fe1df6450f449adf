"""What vLLM's code says of the contract, as data: to see when it changes.

For the base class of connectors, and for what the rules cite of the scheduler and the workers, a
*contract* holds the arguments of each function, what it asserts, a digest of its docstring, and the
fields of each record. It is read from the source without running it. Those of the releases that
kvconform was measured on lie in ``contracts/``.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kvconform.scenario.releases import RELEASES, release

Contract = Mapping[str, Mapping[str, Any]]
"""By qualified name: ``takes`` (arguments), ``asserts`` and ``doc`` of a function; ``has`` (fields)
and ``doc`` of a record."""

CITED: Mapping[str, tuple[str, ...]] = {
    "distributed/kv_transfer/kv_connector/v1/base.py": (
        "KVConnectorBase_V1", "SupportsHMA", "KVConnectorRole", "KVConnectorMetadata",
        "KVConnectorWorkerMetadata", "KVConnectorTransferResults", "KVConnectorHandshakeMetadata",
    ),
    "distributed/kv_transfer/kv_connector/factory.py": ("KVConnectorFactory.create_connector",),
    "distributed/kv_transfer/kv_connector/utils.py": ("KVOutputAggregator",),
    "v1/worker/kv_connector_model_runner_mixin.py": (
        "KVConnectorModelRunnerMixin._get_kv_connector_output",
        "KVConnectorModelRunnerMixin.kv_connector_no_forward",
    ),
    "v1/worker/gpu/kv_connector.py": ("ActiveKVConnector",),
    "v1/core/sched/scheduler.py": (
        "Scheduler.__init__", "Scheduler.schedule", "Scheduler.update_from_output",
        "Scheduler.add_request", "Scheduler.finish_requests", "Scheduler.reset_prefix_cache",
        "Scheduler.reset_connector_cache", "Scheduler.has_requests",
        "Scheduler.has_finished_requests", "Scheduler._free_request", "Scheduler._free_blocks",
        "Scheduler._free_request_blocks", "Scheduler._preempt_request",
        "Scheduler._connector_finished", "Scheduler._update_waiting_for_remote_kv",
        "Scheduler._handle_blocked_waiting_request", "Scheduler._update_from_kv_xfer_finished",
        "Scheduler._update_requests_with_invalid_blocks", "Scheduler._handle_invalid_blocks",
        "Scheduler._handle_failed_recving",
    ),
    "v1/core/sched/output.py": ("SchedulerOutput", "NewRequestData", "CachedRequestData"),
    "v1/core/kv_cache_manager.py": (
        "KVCacheManager.get_computed_blocks", "KVCacheManager.allocate_slots",
        "KVCacheManager.free", "KVCacheManager.get_block_ids",
        "KVCacheManager.get_num_common_prefix_blocks",
    ),
    "v1/core/single_type_kv_cache_manager.py": (
        "SingleTypeKVCacheManager.get_num_common_prefix_blocks",
        "FullAttentionManager.get_num_common_prefix_blocks",
    ),
    "v1/core/kv_cache_utils.py": ("generate_block_hash_extra_keys",),
    "v1/outputs.py": ("KVConnectorOutput", "ModelRunnerOutput"),
    "v1/request.py": ("Request.__init__", "RequestStatus"),
}  # fmt: skip
"""By file of vLLM: functions, and classes as a whole."""

_FOLDER = Path(__file__).parent / "contracts"


def of_release(version: str) -> Contract:
    """The contract of one of :data:`RELEASES`.

    Raises:
        KeyError: it is not.
    """
    if version not in RELEASES:
        raise KeyError(version)
    contract: Contract = json.loads((_FOLDER / f"{version}.json").read_text(encoding="utf-8"))
    return contract


@functools.cache
def installed() -> Contract:
    """The contract of the installed vLLM."""
    import vllm

    return read(Path(str(vllm.__file__)).parent)


@functools.cache
def hooks_before() -> frozenset[str]:
    """Names of all hooks that releases had which are not newer than the installed vLLM."""
    from kvconform.engine.compat.can import vllm_version

    now = release(vllm_version())
    older = [version for version in RELEASES if release(version) <= now]
    names = {name.partition(".") for version in older for name in of_release(version)}
    return frozenset(hook for cls, _, hook in names if cls == "KVConnectorBase_V1" and hook)


def summary() -> dict[str, Any]:
    """Of the installed vLLM: the ``hash``, which release it ``resembles``, how many ``changes``."""
    from kvconform.engine.compat.can import vllm_version

    name = resembles(installed(), vllm_version())
    count = len(changes(of_release(name), installed()))
    return {"hash": digest(installed()), "resembles": name, "changes": count}


def digest(contract: Contract) -> str:
    """Twelve hex digits; equal ones mean equal contracts."""
    return hashlib.sha256(json.dumps(contract, sort_keys=True).encode()).hexdigest()[:12]


def resembles(contract: Contract, version: str) -> str:
    """The release whose contract this is; else the newest that is not newer than ``version``.

    Whether it is the same, :func:`changes` tells. A version older than all gets the oldest.
    """
    for name in reversed(RELEASES):
        if of_release(name) == contract:
            return name
    older = [name for name in RELEASES if release(name) <= release(version)]
    return (older or RELEASES)[-1 if older else 0]


def read(package: Path) -> Contract:
    """The contract of the vLLM whose package this folder is."""
    contract: dict[str, dict[str, Any]] = {}
    for file, names in CITED.items():
        path = package / file
        if not path.exists():
            continue
        body = ast.parse(path.read_text(encoding="utf-8")).body
        for name in names:
            contract.update(_entries(body, name))
    return contract


_Function = ast.FunctionDef | ast.AsyncFunctionDef


def _entries(body: list[ast.stmt], name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The entries of a function, of a method, or of a class with all its methods."""
    first, _, method = name.partition(".")
    for node in body:
        if isinstance(node, _Function) and node.name == name:
            yield name, _function(node)
        if not isinstance(node, ast.ClassDef) or node.name != first:
            continue
        if not method:
            yield name, {"has": _fields(node), "doc": _doc(node)}
        for inner in node.body:
            if isinstance(inner, _Function) and method in ("", inner.name):
                yield f"{first}.{inner.name}", _function(inner)


def _function(node: _Function) -> dict[str, Any]:
    asserts = [ast.unparse(n.test) for n in ast.walk(node) if isinstance(n, ast.Assert)]
    return {"takes": _arguments(node.args), "asserts": asserts, "doc": _doc(node)}


def _arguments(args: ast.arguments) -> list[str]:
    """Names as they are passed, with ``=default``; how types are written changes every year."""
    plain = [a.arg for a in (*args.posonlyargs, *args.args)]
    defaults: list[ast.expr | None] = [None] * (len(plain) - len(args.defaults))
    takes = [_argument(n, d) for n, d in zip(plain, [*defaults, *args.defaults], strict=True)]
    if args.vararg or args.kwonlyargs:
        takes.append(f"*{args.vararg.arg if args.vararg else ''}")
    takes += [_argument(a.arg, d) for a, d in zip(args.kwonlyargs, args.kw_defaults, strict=True)]
    return takes + ([f"**{args.kwarg.arg}"] if args.kwarg else [])


def _argument(name: str, default: ast.expr | None) -> str:
    return name if default is None else f"{name}={ast.unparse(default)}"


def _fields(node: ast.ClassDef) -> list[str]:
    names = []
    for inner in node.body:
        if isinstance(inner, ast.AnnAssign) and isinstance(inner.target, ast.Name):
            names.append(inner.target.id)
        elif isinstance(inner, ast.Assign):
            names += [t.id for t in inner.targets if isinstance(t, ast.Name)]
    return names


def _doc(node: _Function | ast.ClassDef) -> str:
    words = " ".join((ast.get_docstring(node) or "").split())  # line breaks say nothing
    return hashlib.sha256(words.encode()).hexdigest()[:8] if words else ""


def changes(old: Contract, new: Contract) -> list[str]:
    """What differs, a line for each difference, in the order of :data:`CITED`."""
    lines = [f"{name} is gone" for name in old if name not in new]
    for name, now in new.items():
        if name not in old:
            takes = f": ({', '.join(now['takes'])})" if "takes" in now else ""
            lines.append(f"{name} is new{takes}")
            continue
        before = old[name]
        lines += [f"{name} {text}" for text in _differences(before, now)]
    return lines


def _differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    verbs = {
        "takes": ("takes no more", "takes also"),
        "has": ("has no more", "has also"),
        "asserts": ("asserts no more", "asserts also"),
    }
    for what, (less, more) in verbs.items():
        was, is_now = before.get(what, []), now.get(what, [])
        gone = [x for x in was if x not in is_now]
        come = [x for x in is_now if x not in was]
        if gone:
            yield f"{less} {'; '.join(gone)}"
        if come:
            yield f"{more} {'; '.join(come)}"
        if not gone and not come and was != is_now and what == "takes":
            yield f"takes its arguments in another order: ({', '.join(is_now)})"
    if before.get("doc") != now.get("doc"):
        yield "says something else in its docstring"


def main() -> None:
    """Write the contract of the installed vLLM to ``contracts/``: a release has been measured."""
    from kvconform.engine.compat.can import vllm_version

    path = _FOLDER / f"{vllm_version().partition('+')[0]}.json"
    entries = (f"{json.dumps(n)}: {json.dumps(e)}" for n, e in installed().items())
    path.write_text("{\n" + ",\n".join(entries) + "\n}\n", encoding="utf-8")
    print(f"{path.name}: {digest(installed())}")


if __name__ == "__main__":
    main()
