"""What a connector hands to vLLM to be passed on or added up: read, tried, looked at again.

vLLM's own code (mixin, aggregator, scheduler) asks for statistics, KV events and the workers'
metadata in every step. Here is what comes of them: they are tried on copies (``trial``), events are
compared with what the requests' blocks are (``chains``), and the statistics of a step go the way to
the log. What a worker's hooks have answered is compared with what it was once more when the step is
processed: without a wire in between, vLLM holds the object itself.
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Callable
from typing import Any

from kvconform.engine import compat, trial
from kvconform.engine.chains import Chains
from kvconform.engine.recorder import Recorder
from kvconform.scenario.trace import Event, Kind, Trace

_ANSWERS = (
    "get_finished",
    "get_transfer_results",
    "get_block_ids_with_load_errors",
    "get_kv_connector_stats",
    "get_kv_connector_kv_cache_events",
    "build_connector_worker_meta",
)
"""Hooks of the worker half whose answer is used after the worker has gone on."""

_LOG_HOOK = "build_kv_connector_stats"


class Observer:
    """Watches what one engine's connector tells.

    Args:
        recorder: describes errors, and knows the step.
        trace: where observations go.
        engine: index of the engine.
        config: the scheduler's.
        chains: the blocks of all requests of the run.
        block_size: tokens per block hash.
    """

    def __init__(
        self,
        recorder: Recorder,
        trace: Trace,
        engine: int,
        config: Any,
        chains: Chains,
        block_size: int,
    ) -> None:
        self._recorder = recorder
        self._trace = trace
        self._engine = engine
        self._chains = chains
        self._block_size = block_size
        self._front_end = compat.FrontEnd(config)
        self._requests: Callable[[], Any] = tuple
        self._has_told: set[tuple[str, int | None, str]] = set()
        self._handed: dict[int, Any] = {}  # events, which so keep their ids
        self._answers: deque[list[tuple[str, int, Any, bytes]]] = deque()

    # -- hooks ------------------------------------------------------------------------------------

    def scheduler_half(self, scheduler: Any) -> dict[str, Callable[..., None]]:
        """What to do after hooks of the scheduler half."""
        self._requests = scheduler.requests.values
        hooks: dict[str, Callable[..., None]] = {
            "get_kv_connector_stats": lambda answer: self._statistics(answer, None)
        }
        if compat.tells_events(scheduler.connector):
            hooks |= {
                "take_events": self._events,
                "request_finished": lambda request, *_: self._note(request),
                "request_finished_all_groups": lambda request, *_: self._note(request),
                "get_num_new_matched_tokens": self._looked_up,
            }
        return hooks

    def worker_half(self, rank: int) -> dict[str, Callable[..., None]]:
        """What to do after hooks of one worker half."""

        def after(name: str) -> Callable[..., None]:
            tried = {
                "get_kv_connector_stats": self._statistics,
                "build_connector_worker_meta": self._worker_metadata,
            }.get(name)

            def answered(*args: Any) -> None:
                if tried is not None:
                    tried(args[-1], rank)
                self._keep(name, rank, args[-1])

            return answered

        return {name: after(name) for name in _ANSWERS}

    # -- statistics -------------------------------------------------------------------------------

    def _statistics(self, stats: Any, rank: int | None) -> None:
        if stats is None:
            self._nothing("statistics", rank)
            return
        self._recorder.modules |= _modules(stats)
        tried = trial.statistics(stats, self._raised)
        self._tell(
            "statistics", rank, type=type(stats).__name__, empty=tried.empty,
            values=dict(tried.values), adds=list(tried.adds), problem=tried.problem,
            detail=tried.detail, hook="get_kv_connector_stats",
        )  # fmt: skip

    def _worker_metadata(self, metadata: Any, rank: int) -> None:
        if metadata is None:
            self._nothing("worker metadata", rank)
            return
        self._recorder.modules |= _modules(metadata)
        tried = trial.worker_metadata(metadata, self._raised)
        self._tell(
            "worker metadata", rank, type=type(metadata).__name__, content=tried.blob.hex(),
            problem=tried.problem, detail=tried.detail, hook="build_connector_worker_meta",
        )  # fmt: skip

    def _nothing(self, what: str, rank: int | None) -> None:
        """Told only where something was told before, or is the first answer."""
        if (what, rank, "nothing") not in self._has_told:
            self._tell(what, rank, nothing=True)
            self._has_told.add((what, rank, "nothing"))

    def logged(self, outputs: Any) -> None:
        """The outputs of a step have come to the process that logs them.

        A line of the log ends with the first step that has no statistics, so that there are lines
        of one reading and lines of several.
        """
        stats = [one.scheduler_stats for one in outputs.values()]
        try:
            told = [self._front_end.receive(one) for one in stats]
            if not any(told):
                self.log()
        except Exception as error:
            self._log_failed(error)

    def log(self) -> None:
        """A line of the log ends here."""
        try:
            numbers = self._front_end.log()
        except Exception as error:
            self._log_failed(error)
            return
        if numbers is not None:
            problem, detail = trial.odd(numbers) or ("", "")
            self._tell("log", None, problem=problem, detail=detail, hook="reduce")

    def _log_failed(self, error: Exception) -> None:
        described = self._recorder.describe(error)
        if not described["target"] and described["where"].startswith("kvconform."):
            raise error
        name = described["where"].rpartition(".")[2]
        self._tell(
            "log", None, problem=f"{described['error']} in {name}", detail=_words(described),
            hook=_LOG_HOOK,
        )  # fmt: skip

    # -- events -----------------------------------------------------------------------------------

    def _note(self, request: Any) -> None:
        self._chains.note(request, self._block_size)

    def _note_all(self) -> None:
        for request in self._requests():
            self._note(request)

    def _events(self, answer: Any) -> None:
        events = list(answer or ())
        if events:
            self._note_all()
        told = []
        for event in events:
            again = id(event) in self._handed
            self._handed[id(event)] = event
            told.append({"again": again, **self._event(event)})
        if told or ("events", None, "some") in self._has_told:
            self._has_told.add(("events", None, "some"))
            self._tell("events", None, events=told, hook="take_events")

    def _event(self, event: Any) -> dict[str, Any]:
        """An event as data; what is wrong with it is its ``problem``."""
        data: dict[str, Any] = {
            "type": type(event).__name__, "stored": [], "removed": [], "problem": "", "detail": "",
            "text": "",
        }  # fmt: skip
        if not compat.is_event(event):
            return data | {"problem": "no KV event", "detail": f"{type(event).__name__}"}
        try:
            received = compat.received_event(event)
        except Exception as error:
            return data | {"problem": "not received", "detail": f"{type(error).__name__}: {error}"}
        data["text"] = repr(received)
        if compat.stored(received):
            problem, detail = self._chains.problem(received) or ("", "")
            stored = [self._block(name) for name in received.block_hashes]
            return data | {"problem": problem, "detail": detail, "stored": stored}
        if compat.removed(received):
            return data | {"removed": [self._block(n) for n in received.block_hashes]}
        return data | {"cleared": True}

    def _block(self, name: Any) -> dict[str, Any]:
        block = self._chains.get(name)
        computed, of = (None, []) if block is None else (block.computed, sorted(block.of))
        return {"name": repr(name), "computed": computed, "of": of}

    def _looked_up(self, request: Any, local: int, answer: Any) -> None:
        """The names of the blocks that a lookup could have found, where any were announced."""
        if ("events", None, "some") not in self._has_told or answer != (0, False):
            return
        first = local // self._block_size
        # One token is left to compute.
        last = (request.num_tokens - 1) // self._block_size
        names = [repr(compat.names_of(h)[0]) for h in request.block_hashes[first:last]]
        self._tell(
            "miss", None, request=request.request_id, names=names, block_size=self._block_size
        )

    # -- the second look --------------------------------------------------------------------------

    def begin_step(self) -> None:
        """The answers of another step follow."""
        self._answers.append([])

    def _keep(self, name: str, rank: int, answer: Any) -> None:
        if answer is None or (isinstance(answer, tuple) and not any(answer)) or not self._answers:
            return
        try:
            self._answers[-1].append((name, rank, answer, pickle.dumps(answer)))
        except Exception:
            return  # that is another matter, and seen where it is sent

    def processed(self) -> None:
        """The oldest step is about to be processed: what it was told has to be the same still."""
        for name, rank, answer, was in self._answers.popleft():
            changed = pickle.dumps(answer) != was
            if changed or _says_something(answer):
                self._tell("answer", rank, hook=name, changed=changed,
                           detail=repr(pickle.loads(was))[:200])  # fmt: skip

    # -- telling ----------------------------------------------------------------------------------

    def _raised(self, method: str, error: Exception) -> str:
        return _words(self._recorder.describe(error))

    def _tell(self, what: str, rank: int | None, request: str | None = None, **data: Any) -> None:
        self._has_told.discard((what, rank, "nothing"))
        half = "scheduler half" if rank is None else "worker half"
        self._trace.emit(
            Event(
                Kind.OBSERVED, self._engine, self._recorder.step, request, rank,
                {"what": what, "half": half, **data},
            )
        )  # fmt: skip


def _says_something(answer: Any) -> bool:
    if isinstance(answer, tuple):
        return any(answer)
    if hasattr(answer, "finished_sending"):  # results of transfers: all of them may be empty
        return bool(answer.finished_sending or answer.finished_recving)
    return not isinstance(answer, set | frozenset) or bool(answer)


def _modules(handed: Any) -> frozenset[str]:
    """Modules of what was handed out that are not vLLM's own base classes'."""
    bases = {base for kind in compat.HANDED.values() for base in kind.__mro__}
    return frozenset(c.__module__ for c in type(handed).__mro__ if c not in bases)


def _words(described: dict[str, Any]) -> str:
    return (
        f"{described['error']}: {described['message']} ({described['where']}, line "
        f"{described['line']}: {described['source']})"
    )
