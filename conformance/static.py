"""L0: what a class shows without being run."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from kvconform.engine import compat
from kvconform.engine.compat import contract
from kvconform.scenario.errors import UsageError
from kvconform.scenario.target import Target
from kvconform.scenario.violation import Fingerprint, Violation


def load(target: Target) -> Any:
    """The target's class; its scheduler, if it names one, is looked at too.

    Raises:
        UsageError: one of them cannot be imported, or is not what it has to be.
    """
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1

    cls = _imported(target, "target", target.cls, lambda: compat.connector_class(target))
    if not isinstance(cls, type) or not issubclass(cls, KVConnectorBase_V1):
        raise UsageError(
            f"{target.cls!r} is not a KV connector: it has to be a class derived from "
            "vllm's KVConnectorBase_V1."
        )
    if target.scheduler:
        scheduler = _imported(
            target, "scheduler", target.scheduler, lambda: compat.named(target.scheduler)
        )
        if not isinstance(scheduler, type):
            raise UsageError(
                f"{target.scheduler!r} is not a scheduler: it has to be a class, derived from "
                "vllm's Scheduler or to be mixed into it."
            )
    return cls


def _imported(target: Target, what: str, named: str, imported: Callable[[], Any]) -> Any:
    """What ``imported`` answers, or a sentence that says why it cannot be had."""
    module, _, name = named.partition(":")
    try:
        return imported()
    except ModuleNotFoundError as error:
        if error.name is not None and (module.startswith(error.name) or target.install):
            raise UsageError(
                f"There is no module {error.name!r} for the {what} {named!r}: check the name, "
                f"and that it is installed in this environment{_how(target)}."
            ) from None
        raise UsageError(f"The {what}'s module {module!r} cannot be imported: {error}.") from error
    except AttributeError:
        raise UsageError(f"The module {module!r} has no class {name!r}.") from None
    except (Exception, SystemExit) as error:
        raise UsageError(
            f"The {what}'s module {module!r} cannot be imported: {type(error).__name__}: {error}."
        ) from error


def _how(target: Target) -> str:
    """How a known target that is not installed gets here."""
    return f" ({target.install} check {target.name} brings it)" if target.install else ""


def features(
    cls: Any, target: Target, offers: frozenset[str], beside: bool = False
) -> dict[str, str]:
    """What the target has, each with how that was found.

    ``beside``: it is put beside a companion.
    """
    base = _base()
    found: dict[str, str] = {}

    def overridden(feature: str, *hooks: str) -> None:
        for hook in hooks:
            if hasattr(base, hook) and getattr(cls, hook) is not getattr(base, hook):
                found.setdefault(feature, f"{hook} is overridden")

    overridden("async", "get_finished", "get_transfer_results")
    overridden("load-failure", "get_block_ids_with_load_errors", "get_transfer_results")
    overridden("reset", "reset_cache")
    overridden("events", "take_events")
    overridden("stats", "get_kv_connector_stats")
    overridden("worker-meta", "build_connector_worker_meta")
    if compat.serves_groups(target):
        found["hma"] = "derives from SupportsHMA"
    if "hold" in offers:
        found["orders"] = "its transfers obey orders: " + ", ".join(sorted(offers))
    if target.dialect:
        found["pd"] = "its dialect is declared"
    if target.device != "cpu":
        found["device"] = "its device is simulated, and obeys orders"
    if target.children:
        found["children"] = f"it is composed of {target.children} connectors"
        found["siblings"] = "its children have some"
    elif beside:
        found["siblings"] = "it stands beside a companion"
    for feature in target.features:
        found.setdefault(feature, "declared")
    return found


def judge(cls: Any, target: Target) -> list[Violation]:
    """Breaches of KVC-001, KVC-002 and KVC-003."""
    broken = []

    def fail(rule: str, kind: str, where: str, expected: str, got: str, why: str) -> None:
        fingerprint = Fingerprint(rule, "composition", target.class_name, kind, where)
        broken.append(Violation(fingerprint, expected, got, why))

    for name in sorted(getattr(cls, "__abstractmethods__", ())):
        fail(
            "KVC-001", "abstract hook", name, f"an implementation of {name}", "none",
            "the class cannot be instantiated",
        )  # fmt: skip
    for name in sorted(contract.hooks_before() - vars(_base()).keys()):
        if not name.startswith("_") and any(name in vars(c) for c in cls.__mro__[:-1]):
            fail(
                "KVC-003", "left over", name, "only hooks that this vLLM calls", name,
                "nobody calls it: what it did is not done",
            )  # fmt: skip
    wanted = list(inspect.signature(_base().__init__).parameters.values())[1:]
    # Releases that can do without the last argument also call a constructor that does not take it.
    counts = {len(wanted), sum(p.default is p.empty for p in wanted)}
    if not any(_accepts(cls.__init__, count + 1) for count in counts):
        fail(
            "KVC-001", "constructor", "__init__",
            f"a constructor that takes ({', '.join(p.name for p in wanted)})",
            str(inspect.signature(cls.__init__)), "vLLM calls it with these, by position",
        )  # fmt: skip
    for name, hook in sorted(vars(_base()).items()):
        mine = inspect.getattr_static(cls, name, hook)
        if name.startswith("_") or mine is hook or not inspect.isfunction(hook):
            continue
        if not inspect.isfunction(mine):
            continue
        wanted = [
            p for p in inspect.signature(hook).parameters.values()
            if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        ]  # fmt: skip
        if not _accepts(mine, len(wanted)):
            fail(
                "KVC-002", "signature", name,
                f"{name}({', '.join(p.name for p in wanted)})",
                f"{name}{inspect.signature(mine)}", "vLLM passes these, by position",
            )  # fmt: skip
    return broken


def _accepts(function: Any, count: int) -> bool:
    try:
        inspect.signature(function).bind(*[None] * count)
    except TypeError:
        return False
    return True


def _base() -> Any:
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1

    return KVConnectorBase_V1
