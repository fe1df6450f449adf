"""Recording wrappers around the target's hooks.

They are set on the instance, for vLLM asks ``isinstance``. What vLLM calls is recorded; a hook that
the target calls itself, from within another one or from a thread of its own, is not. Wrappers
observe: they pass arguments, answers and exceptions through.
"""

from __future__ import annotations

import asyncio
import functools
import re
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any

from kvconform.engine import compat, threads
from kvconform.scenario.trace import Event, Kind, Trace

SCHEDULER_HOOKS = (
    "get_num_new_matched_tokens",
    "update_state_after_alloc",
    "build_connector_meta",
    "on_new_request",
    "update_connector_output",
    "request_finished",
    "request_finished_all_groups",
    "get_kv_connector_stats",
    "take_events",
    "reset_cache",
    "has_pending_block_frees",
    "has_pending_push_work",
    "shutdown",
)

PENDING = ("has_pending_block_frees", "has_pending_push_work")
"""What keeps an engine from preempting, and from resting."""

WORKER_HOOKS = (
    "register_kv_caches",
    "handle_preemptions",
    "bind_connector_metadata",
    "start_load_kv",
    "wait_for_layer_load",
    "save_kv_layer",
    "wait_for_save",
    "get_finished",
    "get_transfer_results",
    "get_block_ids_with_load_errors",
    "get_kv_connector_stats",
    "get_kv_connector_kv_cache_events",
    "build_connector_worker_meta",
    "clear_connector_metadata",
    "shutdown",
)

_SILENT = frozenset(  # called every step or layer, with nothing in them that a check asks for
    {"bind_connector_metadata", "clear_connector_metadata", "wait_for_layer_load", "save_kv_layer",
     "has_pending_block_frees", "has_pending_push_work", "take_events", "handle_preemptions",
     "get_kv_connector_stats", "get_kv_connector_kv_cache_events", "wait_for_save", "shutdown"}
)  # fmt: skip


def _ids(blocks: Any) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(group) for group in blocks.get_block_ids())


def _lookup(args: tuple[Any, ...], answer: Any) -> dict[str, Any]:
    request, local = args[0], args[1]
    return {"local": local, "answer": answer, "total": request.num_tokens,
            "status": request.status.name, "threads": bool(threads.mine())}  # fmt: skip


def _finished(args: tuple[Any, ...], answer: Any) -> dict[str, Any]:
    delayed = answer[0] if isinstance(answer, tuple) and answer else answer
    params = answer[1] if isinstance(answer, tuple) and len(answer) > 1 else None
    return {"status": args[0].status.name, "blocks": args[1], "delayed": delayed,
            "params": params is not None}  # fmt: skip


def _told(output: Any) -> bool:
    """Whether the workers told anything; older releases have not all of these."""
    return any(
        getattr(output, name, None)
        for name in ("finished_sending", "finished_recving", "invalid_block_ids",
                     "kv_connector_worker_meta", "kv_connector_stats")
    )  # fmt: skip


def _is_ids(value: Any, kind: type) -> bool:
    return isinstance(value, set | frozenset) and all(isinstance(v, kind) for v in value)


def _finish_problem(answer: Any) -> str | None:
    if not isinstance(answer, tuple) or len(answer) != 2:
        return "a pair"
    right = isinstance(answer[0], bool) and (answer[1] is None or isinstance(answer[1], dict))
    return None if right else "a pair of bool, and dict or None"


def _sets_problem(answer: Any) -> str | None:
    if not isinstance(answer, tuple) or len(answer) != 2:
        return "a pair"
    right = all(ids is None or _is_ids(ids, str) for ids in answer)
    return None if right else "a pair of sets of request ids, or None"


def _events_problem(answer: Any) -> str | None:
    return None if answer is None or isinstance(answer, Iterable) else "KV events in a row, or None"


def _statistics_problem(answer: Any) -> str | None:
    right = answer is None or isinstance(answer, compat.HANDED["statistics"])
    return None if right else "statistics (KVConnectorStats), or None"


def _errors_problem(answer: Any) -> str | None:
    return None if _is_ids(answer, int) else "a set of block ids"


_ANSWERS: dict[str, Callable[[Any], str | None]] = {
    "request_finished": _finish_problem,
    "request_finished_all_groups": _finish_problem,
    "get_finished": _sets_problem,
    "get_block_ids_with_load_errors": _errors_problem,
    "get_kv_connector_stats": _statistics_problem,
    "take_events": _events_problem,
}
"""Hooks whose answer vLLM takes apart; each says what it should have been when it is not."""

_KEEP: dict[str, Callable[[tuple[Any, ...], Any], dict[str, Any]]] = {
    "get_num_new_matched_tokens": _lookup,
    "update_state_after_alloc": lambda args, _: {"blocks": _ids(args[1]), "external": args[2]},
    "build_connector_meta": lambda _, answer: {"none": answer is None},
    "request_finished": _finished,
    "request_finished_all_groups": _finished,
    "reset_cache": lambda _, answer: {"answer": answer},
    "update_connector_output": lambda args, _: {"told": _told(args[0])},
    "get_finished": lambda args, answer: {"finished": set(args[0]), "answer": answer},
    "get_transfer_results": lambda args, answer: {"finished": set(args[0]), "told": _told(answer)},
    "get_block_ids_with_load_errors": lambda _, answer: {"answer": answer},
}

_OF_REQUEST = frozenset(
    {"get_num_new_matched_tokens", "update_state_after_alloc", "on_new_request",
     "request_finished", "request_finished_all_groups"}
)  # fmt: skip


_ADDRESS = re.compile(r"0x[0-9a-f]{6,}")

ESCAPING = (Exception, SystemExit, GeneratorExit, asyncio.CancelledError)
"""What may escape a hook and counts as its fault; an interrupt is the user's."""

watcher: Callable[[str, str], None] | None = None
"""Told of every hook before it is called (half, name): who dies in one can be named."""


class Recorder:
    """Wraps the halves of one engine's connector and writes down what they are asked and answer.

    Attributes:
        step: the engine's step, set by the engine.
        modules: where the target's code is: errors from there are its own.
        raised: the exception that last escaped a hook.
        pending: what the hooks of :data:`PENDING` answered last, by child of a composition.
    """

    def __init__(
        self, trace: Trace, engine: int, modules: frozenset[str], folder: str | None
    ) -> None:
        self.trace = trace
        self.engine = engine
        self.modules = modules
        self._folder = folder
        self.step = 0
        self.raised: BaseException | None = None
        self.pending: dict[tuple[int | None, str], bool] = {}
        self._depth: dict[int, int] = {}
        self._driver = threading.get_ident()

    def wrap(
        self,
        connector: Any,
        half: str,
        rank: int | None,
        before: dict[str, Callable[..., None]] | None = None,
        after: dict[str, Callable[..., None]] | None = None,
        child: int | None = None,
    ) -> None:
        """Record every hook of ``connector``.

        Args:
            connector: an instance of the target.
            half: ``scheduler half`` or ``worker half``.
            rank: the worker's rank.
            before: per hook, what the engine itself has to do first (with the hook's arguments).
            after: per hook, what it has to do afterwards (with arguments and answer).
            child: which child of a composition it is; None: it is what vLLM itself calls.
        """
        for name in SCHEDULER_HOOKS if rank is None else WORKER_HOOKS:
            hook = getattr(connector, name, None)
            if hook is not None:
                setattr(
                    connector,
                    name,
                    self._wrapper(
                        id(connector), hook, name, half, rank,
                        (before or {}).get(name), (after or {}).get(name), child,
                    ),
                )  # fmt: skip

    def _wrapper(
        self,
        key: int,
        hook: Callable[..., Any],
        name: str,
        half: str,
        rank: int | None,
        before: Callable[..., None] | None,
        after: Callable[..., None] | None,
        child: int | None,
    ) -> Callable[..., Any]:
        keep = _KEEP.get(name)
        judge = _ANSWERS.get(name)
        of_request = name in _OF_REQUEST
        silent, pending = name in _SILENT, name in PENDING
        depth, driver = self._depth, self._driver
        depth.setdefault(key, 0)

        def objected(answer: Any) -> bool:
            problem = judge(answer) if judge is not None else None
            if problem is None:
                return False
            self.trace.tell(
                Event(
                    Kind.ANSWERED, self.engine, self.step, None, rank,
                    {"half": half, "name": name, "expected": problem,
                     "answer": _ADDRESS.sub("0x…", repr(answer))[:200]},
                ),
                child,
            )  # fmt: skip
            return True

        @functools.wraps(hook)
        def recorded(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != driver:
                return hook(*args, **kwargs)
            if depth[key]:
                answer = hook(*args, **kwargs)
                objected(answer)
                return answer
            if before is not None:
                before(*args)
            if watcher is not None:
                watcher(half, name)
            depth[key] += 1
            try:
                answer = hook(*args, **kwargs)
                if isinstance(answer, Iterator):  # its body is the hook's, and vLLM runs it at once
                    answer = list(answer)
            except ESCAPING as error:
                if self.raised is not error:  # else a child's, and on its way through
                    self.raised = error
                    self.trace.tell(
                        Event(
                            Kind.RAISED, self.engine, self.step,
                            args[0].request_id if of_request and args else None, rank,
                            {"half": half, "name": name, **self.describe(error)},
                        ),
                        child,
                    )  # fmt: skip
                raise
            finally:
                depth[key] -= 1
            if pending:
                self.pending[child, name] = bool(answer)
            if not objected(answer) and not silent:
                self.trace.tell(
                    Event(
                        Kind.HOOK, self.engine, self.step,
                        args[0].request_id if of_request else None, rank,
                        {"half": half, "name": name, **(keep(args, answer) if keep else {})},
                    ),
                    child,
                )  # fmt: skip
            if after is not None:
                after(*args, answer)
            return answer

        return recorded

    def came_from_hook(self, error: BaseException) -> bool:
        """Whether ``error`` is the one that escaped a hook, or was raised because of it."""
        seen: BaseException | None = error
        while seen is not None:
            if seen is self.raised:
                return True
            seen = seen.__cause__ or seen.__context__
        return False

    def describe(self, error: BaseException) -> dict[str, Any]:
        """An exception as data: type, text, and the frame that answers for it.

        That is the innermost frame in the target's modules, else the innermost of all. Addresses
        are left out, and the run's own folder is named by its placeholder, so that the
        description is the same in every run.
        """
        frames = list(_frames(error.__traceback__))
        handed = next(filter(None, map(_handed, _selves(error.__traceback__))), "")
        mine = [f for f in frames if f[0] in self.modules]
        module, function, line, source = (mine or frames or [("?", "?", 0, "")])[-1]
        message = _ADDRESS.sub("0x…", str(error))
        if self._folder is not None:
            message = message.replace(self._folder, "{run_dir}")
        return {
            "error": type(error).__name__,
            "message": message[:500],
            "where": f"{module}:{function}",
            "line": line,
            "source": source,
            "target": bool(mine),
            "handed": handed,
        }


def _selves(tb: TracebackType | None) -> Iterator[Any]:
    for frame, _ in traceback.walk_tb(tb):
        yield frame.f_locals.get("self")


def _handed(obj: Any) -> str:
    """What kind of object it is that a hook handed to vLLM; empty: no such object."""
    return next((name for name, kind in compat.HANDED.items() if isinstance(obj, kind)), "")


def _frames(tb: TracebackType | None) -> Any:
    for frame, line in traceback.walk_tb(tb):
        module = frame.f_globals.get("__name__", "?")
        summary = traceback.FrameSummary(frame.f_code.co_filename, line, frame.f_code.co_name)
        yield module, frame.f_code.co_qualname, line, summary.line or ""
