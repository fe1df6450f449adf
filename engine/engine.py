"""One steppable vLLM: a real scheduler, one worker half per rank, and nothing patched in between.

The loop is EngineCore's: schedule, execute, aggregate, deliver the aborts that came meanwhile,
update. Everything that crosses between scheduler and workers is pickled, as in a real deployment.
"""

from __future__ import annotations

import contextlib
import functools
import pickle
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kvconform.engine import compat
from kvconform.engine.blame import Found, blame
from kvconform.engine.chains import Chains
from kvconform.engine.children import Child, Step
from kvconform.engine.device import Device
from kvconform.engine.holdings import Holdings
from kvconform.engine.memory import Memory
from kvconform.engine.observe import Observer
from kvconform.engine.oracle import Stream
from kvconform.engine.recorder import ESCAPING, Recorder
from kvconform.engine.telling import Teller
from kvconform.engine.untouched import Watched, shape_of
from kvconform.engine.worker import BeyondError, Worker
from kvconform.scenario.errors import HarnessError, UsageError
from kvconform.scenario.identity import Identity
from kvconform.scenario.shape import Shape
from kvconform.scenario.target import Target
from kvconform.scenario.trace import Kind, Trace


class HaltedError(Exception):
    """The run is over: something broke, or the referee has seen enough."""


@dataclass(frozen=True, slots=True)
class Delivered:
    """The end of a request as its client sees it.

    Attributes:
        request: its id.
        finish: vLLM's finish reason: ``length``, ``abort``, ``error``.
        params: the ``kv_transfer_params`` that its output carries.
    """

    request: str
    finish: str
    params: Mapping[str, Any] | None


class Engine:
    """A vLLM that is stepped from outside.

    Args:
        index: which engine of the cluster this is.
        target: the connector under test.
        shape: the run's shape.
        extra: the target's ``kv_connector_extra_config``, placeholders filled in.
        trace: where observations go.
        streams: every request of the run, by id, with the stream that it must follow.
        halt: asked between the phases of a step; true ends the run.
        chains: the blocks of all requests of the run.
        folder: the run's own folder, if the target has one.
        life: which of its lives this is.
        begun: steps of its lives before.
        device: what its KV lies on; None: the host.

    Attributes:
        holdings: whose blocks are whose.
        delivered: requests that ended, until the cluster takes them out.
        forgotten_loading: requests that were forgotten while they were loading (until 0.13): what
            becomes of the load is reported under their name still.
    """

    def __init__(
        self,
        index: int,
        target: Target,
        shape: Shape,
        extra: Mapping[str, Any],
        trace: Trace,
        streams: Mapping[str, Stream],
        halt: Callable[[], bool],
        chains: Chains,
        folder: str | None = None,
        life: compat.Life | None = None,
        begun: int = 0,
        device: Device | None = None,
    ) -> None:
        self.index = index
        self.device = device or Device()
        self.life = life or compat.Life()
        self.shape = shape
        self.trace = trace
        self._streams = streams
        self._halt = halt
        modules = frozenset(c.__module__ for c in compat.connector_classes(target))
        self.recorder = Recorder(trace, index, modules | {target.module}, folder)
        self.recorder.step = begun
        self.teller = Teller(trace, index, self.recorder)
        self._statuses: dict[str, Any] = {}
        self._aborts: list[str] = []
        self._queue: deque[tuple[Any, bytes, Any, Step]] = deque()
        self._snapshot: Any = None
        self._watched = Watched()
        self._misread: list[tuple[str, Found]] = []
        self._unprocessed: list[frozenset[int]] = []
        self._marks: deque[list[Any]] = deque()
        self.forgotten_loading: set[str] = set()
        self.delivered: list[Delivered] = []
        try:
            self.config = compat.build_config(target, index, None, shape, extra, self.life)
            self._configs = [
                compat.build_config(target, index, rank, shape, extra, self.life)
                for rank in range(shape.ranks)
            ]
        except Exception as error:  # before the target was asked: no refusal of its own
            raise UsageError(f"vLLM does not accept the shape {shape}: {error}") from error
        self._config_states = [compat.config_state(c) for c in self._all_configs()]
        with compat.rank_scope(self.config, None, shape, None):
            parts = compat.build_scheduler(self.config, target, shape)
        self.scheduler = parts.scheduler
        self.connector = parts.scheduler.connector
        self._depth = compat.concurrent_batches(self.config, shape)
        layers = sum(len(g) for s in range(shape.pp) for g in compat.layer_names(shape, s))
        self.memory = Memory(index, shape, layers, target.caches, self.device)
        self.holdings = Holdings(self.scheduler, self.memory, shape, self.teller)
        self.observer = Observer(
            self.recorder, trace, index, self.config, chains, parts.hash_block_size
        )
        self.recorder.wrap(
            self.connector,
            "scheduler half",
            None,
            before={
                "get_num_new_matched_tokens": self._watched.remember,
                "update_state_after_alloc": self._before_alloc,
                "build_connector_meta": self._before_meta,
                "request_finished": self._watched.remember,
                "request_finished_all_groups": self._watched.remember,
            },
            after=_both(
                self.observer.scheduler_half(self.scheduler),
                {
                    "build_connector_meta": self._after_meta,
                    "get_num_new_matched_tokens": self._after_lookup,
                    "update_state_after_alloc": functools.partial(
                        self._compare, "update_state_after_alloc"
                    ),
                    "request_finished": functools.partial(self._compare, "request_finished"),
                    "request_finished_all_groups": functools.partial(
                        self._compare, "request_finished"
                    ),
                },
            ),
        )
        self.children = [
            Child(
                child, connector, self.recorder, lambda: self.holdings.admission,
                lambda: self.scheduler.requests, shape.ranks, shape.block_size,
            )
            for child, connector in enumerate(compat.children(self.connector))
        ]  # fmt: skip
        self.workers: list[Worker] = []
        for rank, config in enumerate(self._configs):
            with self._scope(rank, None):
                connector = compat.build_worker_connector(config, parts, shape, rank // shape.tp)
            self.recorder.wrap(
                connector, "worker half", rank, after=self.observer.worker_half(rank)
            )
            for child, half in zip(self.children, compat.children(connector), strict=True):
                child.add_worker(half, rank)
            worker = Worker(
                rank, self.memory, config, connector, streams.__getitem__, self._depth > 1
            )
            with self._scope(rank, connector):
                worker.register()
            self.workers.append(worker)
        self._shake_hands()
        self.aggregator = compat.world_output(self.connector, shape.ranks)

    @contextlib.contextmanager
    def _scope(self, rank: int, connector: Any) -> Iterator[None]:
        """In the process of a rank's worker, whose transfer agent ``connector`` is."""
        with (
            compat.rank_scope(self._configs[rank], rank, self.shape, connector),
            self.device.scope(self.index, rank),
        ):
            yield

    def _shake_hands(self) -> None:
        """Pass the workers' handshake metadata to the scheduler half, as EngineCore does."""
        said = {}
        for worker in self.workers:
            with self._scope(worker.rank, worker.connector):
                metadata = compat.handshake(worker.connector)
            if metadata is not None:
                said[worker.stage, worker.rank % self.shape.tp] = metadata
        if said:
            compat.shake_hands(self.connector, pickle.loads(pickle.dumps(said)))

    # -- what the outside does to an engine ------------------------------------------------------

    @property
    def step_number(self) -> int:
        """Steps begun so far."""
        return self.recorder.step

    def arrive(
        self,
        request_id: str,
        prompt: tuple[int, ...],
        max_tokens: int,
        identity: Identity,
        *,
        priority: int = 0,
        params: Mapping[str, Any] | None = None,
        stop: int | None = None,
    ) -> None:
        """A request arrives, with these ``kv_transfer_params``; the token ``stop`` ends it."""
        request = compat.build_request(
            request_id, prompt, max_tokens, identity, self.shape.block_size,
            priority=priority, params=params, stop=stop,
        )  # fmt: skip
        with self._phase():
            self.scheduler.add_request(request)
        self._observe()

    def abort(self, request_id: str) -> None:
        """A client aborts, between two steps."""
        with self._phase():
            self.scheduler.finish_requests(request_id, compat.finished_status("FINISHED_ABORTED"))
        self._observe()

    def abort_mid_step(self, request_id: str) -> None:
        """A client aborts while the next step is being executed."""
        self._aborts.append(request_id)

    def reset(self, running: bool, connector: bool) -> bool:
        """The operator resets the prefix cache; returns whether vLLM says that it succeeded."""
        choices = compat.reset_choices(running, connector)
        with self._phase():
            try:
                done = bool(self.scheduler.reset_prefix_cache(**choices))
            except RuntimeError as error:
                # The engine reports this to the operator and lives on: requests that wait for
                # remote KV cannot be reset.
                if "Failed to reset KV cache" not in str(error):
                    raise
                done = False
        pool = self.scheduler.kv_cache_manager.block_pool
        # What a completion is owed for stays as it is, though vLLM may have given it back too soon.
        emptied = (
            pool.get_num_free_blocks() == self.shape.num_blocks - 1
            and not any(block.block_hash for block in pool.blocks)
            and not self.holdings.kept
        )
        if emptied:
            self.memory.empty()
        self.teller.tell(
            Kind.RESET,
            {
                "running": choices.get("reset_running_requests", False),
                "connector": choices.get("reset_connector", False),
                "ok": done,
            },
        )
        self._observe()
        return done

    def status(self, request_id: str) -> str | None:
        """A request's status in the scheduler; None when it is forgotten."""
        request = self.scheduler.requests.get(request_id)
        return request.status.name if request is not None else None

    def under_way(self, request_id: str) -> bool:
        """Whether a step is being executed whose output will name this request."""
        return any(request_id in so.num_scheduled_tokens for so, *_ in self._queue)

    def live(self) -> list[str]:
        """Ids that the scheduler has not forgotten, oldest first."""
        return list(self.scheduler.requests)

    # -- a step -----------------------------------------------------------------------------------

    def has_work(self, last: bool = False) -> bool:
        """Whether the real engine loop would take another step.

        Until 0.20 it rests while blocks of finished requests are still being sent, and hears that
        they have been only when the next request comes. ``last``: there is no next one, go on.
        """
        return bool(self._queue) or self._has_requests(last)

    def _has_requests(self, last: bool) -> bool:
        return bool(self.scheduler.has_requests() or (last and self.scheduler.requests))

    def step(self, last: bool = False) -> bool:
        """One turn of the engine loop; False when there was nothing to do (see ``has_work``).

        Raises:
            HaltedError: the run is over.
        """
        if not self.has_work(last):
            return False
        if last and not self.has_work():
            self.teller.rested(self.scheduler)
        if self._depth > 1:
            # EngineCore.step_with_batch_queue: batches run ahead of the one being processed.
            if self._has_requests(last):
                self._queue.append(self._schedule_and_execute())
                so = self._queue[-1][0]
                if len(self._queue) < self._depth and (
                    so.total_num_scheduled_tokens or self._has_requests(last)
                ):
                    return True
            self._update(*self._queue.popleft())
        else:
            self._update(*self._schedule_and_execute())
        return True

    def _schedule_and_execute(self) -> tuple[Any, bytes, Any, Step]:
        self.recorder.step += 1
        self.holdings.begin_step()
        with self._phase():
            so = self.scheduler.schedule()
        self.holdings.scheduled(so)
        self._observe()
        self.teller.scheduled(so, self.scheduler)
        self.teller.common(so, self.scheduler)
        self._check_halt()
        of_children = Step(self.children)
        metadata, blob = self._pack(so)
        steps = [pickle.loads(blob) for _ in self.workers]
        for worker, step in zip(self.workers, steps, strict=True):
            with self._scope(worker.rank, worker.connector), self._phase():
                worker.prepare(step)
        self.memory.apply()
        outputs = []
        self.observer.begin_step()
        for worker, step in zip(self.workers, steps, strict=True):
            with self._scope(worker.rank, worker.connector), self._phase():
                output = worker.execute(step, self._note_misread)
                self._check_halt()  # what cannot be pickled has been objected to
                outputs.append(pickle.loads(pickle.dumps(output)))
            self._check_halt()  # after a wrong answer nothing more can be made of the step
            for child in self.children:
                child.ran(worker.rank)
            self._emit_ran(worker.rank, compat.reported(outputs[-1].kv_connector_output))
        reports = [compat.reported(o.kv_connector_output) for o in outputs]
        self._unprocessed.append(frozenset().union(*(r.invalid for r in reports)))
        self._marks.append([worker.mark for worker in self.workers])
        self._blame_misread()
        with self._phase():
            output = outputs[0]
            if self.aggregator is not None:
                # The first rank of the last stage speaks for all.
                output = self.aggregator.aggregate(outputs, self.shape.ranks - self.shape.tp)
        of_children.ran()
        return so, metadata, output, of_children

    def _pack(self, so: Any) -> tuple[bytes, bytes]:
        """The step as it goes over the wire, and the metadata alone, to see whether it changes."""
        try:
            return pickle.dumps(so.kv_connector_metadata), pickle.dumps(so)
        except Exception as error:
            self.teller.wire("unpicklable", f"{type(error).__name__}: {error}")
            raise HaltedError from error

    def _propose(self, so: Any) -> None:
        """Drafts for the next step, as the engine takes them from the first rank's drafter."""
        if self.shape.drafts and so.total_num_scheduled_tokens:
            proposed = self.workers[0].propose(so)
            with self._phase():
                self.scheduler.update_draft_token_ids(compat.draft_token_ids(proposed))

    def _update(self, so: Any, metadata: bytes, output: Any, of_children: Step) -> None:
        for mark in self._marks.popleft():
            self.device.reach(mark)  # its tokens are on the host
        self._blame_misread()
        self._check_halt()
        if compat.ABORTS_WITHIN_STEPS:
            self._abort_those_meanwhile()
        of_children.processed()
        self.teller.report(Kind.OUTPUT, None, compat.reported(output.kv_connector_output))
        if (
            so.kv_connector_metadata is not None
            and pickle.dumps(so.kv_connector_metadata) != metadata
        ):
            self.teller.wire(
                "aliased",
                f"the {type(so.kv_connector_metadata).__name__} of the step changed after it had "
                "been handed out, and before its report was processed",
            )
        self.observer.processed()
        with self._phase():
            delivered = self.scheduler.update_from_output(so, output)
        self.observer.logged(delivered)
        self._propose(so)
        self._unprocessed.pop(0)
        for outputs in delivered.values():
            for one in outputs.outputs:
                finish = None if one.finish_reason is None else str(one.finish_reason)
                tokens = [int(t) for t in one.new_token_ids]
                self.teller.tell(Kind.TOKENS, {"tokens": tokens, "finish": finish}, one.request_id)
                if finish is not None:
                    self.delivered.append(Delivered(one.request_id, finish, one.kv_transfer_params))
        self._observe()
        self._check_halt()
        self._abort_those_meanwhile()

    def _abort_those_meanwhile(self) -> None:
        """Deliver the aborts that came while a step was being executed."""
        aborts, self._aborts = self._aborts, []
        for request_id in aborts:
            self.abort(request_id)

    # -- watching ---------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _phase(self) -> Iterator[None]:
        """Run vLLM's code; an exception becomes an event, and the end of the run."""
        try:
            yield
        except HaltedError:
            raise
        except ESCAPING as error:
            if not self.recorder.came_from_hook(error):
                data = self.recorder.describe(error)
                own = data["where"].startswith(("kvconform.engine", "kvconform.faults"))
                if own and not isinstance(error, BeyondError):
                    raise HarnessError(
                        f"kvconform itself failed in {data['where']}, line {data['line']}: "
                        f"{data['error']}: {data['message']}"
                    ) from error
                self.teller.tell(Kind.BROKE, data)
            raise HaltedError from error

    def _check_halt(self) -> None:
        if self._halt():
            raise HaltedError

    def _observe(self) -> None:
        """Emit every change of a request's status since the last look."""
        now = {name: request.status for name, request in self.scheduler.requests.items()}
        if now == self._statuses:
            return
        for name, status in now.items():
            old = self._statuses.get(name)
            if old is not status:
                self._status(name, old, status)
        for name, status in self._statuses.items():
            if name not in now:
                self._status(name, status, None)
                self.holdings.forgotten(name)
        self._statuses = now

    def _status(self, request: str, old: Any, new: Any) -> None:
        names = [None if status is None else status.name for status in (old, new)]
        data = {"old": names[0], "new": names[1]}
        if (names[1] or "").startswith("FINISHED"):
            self.holdings.ended(request)
        elif new is not None:
            self.holdings.goes_on(request)
        if names == ["WAITING_FOR_REMOTE_KVS", None]:
            self.forgotten_loading.add(request)
        self.teller.tell(Kind.STATUS, data, request)

    def _before_alloc(self, request: Any, _blocks: Any, external: int) -> None:
        self._watched.remember(request)
        self.holdings.admitted(request, external)

    def _after_lookup(self, request: Any, local: int, answer: Any) -> None:
        self._compare("get_num_new_matched_tokens", request)
        self.holdings.looked_up(request.request_id, local, answer)

    def _compare(self, hook: str, request: Any, *_: Any) -> None:
        """A hook was called with this request, and may not have changed it."""
        changed = self._watched.changed(request)
        if changed is not None:
            self.teller.wire("request", changed, hook)

    def _before_meta(self, so: Any) -> None:
        self._snapshot = shape_of(so)

    def _after_meta(self, so: Any, metadata: Any) -> None:
        self.holdings.planned(metadata)
        if shape_of(so) != self._snapshot:
            self.teller.wire("modified", "build_connector_meta changed the scheduler's output")

    def _emit_ran(self, rank: int, report: compat.Report) -> None:
        self.memory.failed(report.invalid)
        for name in report.failed:
            self.memory.failed_request(name)
        self.teller.report(Kind.RAN, rank, report)

    def _note_misread(self, request: str, found: Found) -> None:
        self._misread.append((request, found))

    def _blame_misread(self) -> None:
        """Decide about what attention read wrong in this step, now that all ranks have reported.

        A failed synchronous load is reported after the forward that needed it, and vLLM drops what
        that forward computed: until it has processed the report, reading the block is no fault.
        """
        excused = set().union(*self._unprocessed)
        misread, self._misread = self._misread, []
        for request, found in misread:
            if found.block in excused:
                continue
            verdict = blame(found, self.memory, self._streams[request], self._streams.items())
            promise = self.memory.promises.get(found.block)
            data = {
                "position": found.position, "block": found.block, "slot": found.slot,
                "layer": found.layer, "connector": verdict.connector,
                "what": verdict.kind, "text": verdict.text,
                "loaded_for": promise.request if promise else None,
            }  # fmt: skip
            for child in self.children if verdict.kind != "overwritten" else ():
                if promise and child.loads(promise.request):
                    child.tell(Kind.WRONG_KV, request, data, found.rank)
            self.teller.tell(Kind.WRONG_KV, data, request, found.rank)

    # -- the end ----------------------------------------------------------------------------------

    def empty_cache(self) -> tuple[bool, int]:
        """Reset the prefix cache: whether vLLM says that it is empty, and blocks that are found."""
        with self._phase():
            done = bool(self.scheduler.reset_prefix_cache())
        blocks = self.scheduler.kv_cache_manager.block_pool.blocks
        return done, sum(block.block_hash is not None for block in blocks)

    def _all_configs(self) -> list[Any]:
        return [self.config, *self._configs]

    def shutdown(self) -> None:
        """Shut both halves down, as the engine does; changed configs are not used again."""
        if [compat.config_state(c) for c in self._all_configs()] != self._config_states:
            compat.forget_configs()
            self.teller.tell(
                Kind.LOG,
                {
                    "level": "WARNING",
                    "logger": "kvconform",
                    "message": "the target changed vLLM's config during the run",
                },
            )
        for worker in self.workers:
            with self._scope(worker.rank, worker.connector):
                worker.connector.shutdown()
        self.connector.shutdown()


def _both(*hooks: Mapping[str, Callable[..., None]]) -> dict[str, Callable[..., None]]:
    """Several things to do at each hook, one after the other."""

    def in_turn(of: list[Callable[..., None]]) -> Callable[..., None]:
        def do(*args: Any) -> None:
            for one in of:
                one(*args)

        return do

    return {
        name: in_turn([h[name] for h in hooks if name in h]) for name in sorted(set().union(*hooks))
    }
