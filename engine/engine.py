"""One steppable vLLM: a real scheduler, one worker half per rank, and nothing patched in between.

The loop is EngineCore's: schedule, execute, aggregate, deliver the aborts that came meanwhile,
update. Everything that crosses between scheduler and workers is pickled, as in a real deployment.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import pickle
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvconform.engine import compat
from kvconform.engine.blame import Found, blame
from kvconform.engine.chains import Chains
from kvconform.engine.children import Admission, Child, Step
from kvconform.engine.device import Device
from kvconform.engine.memory import Memory, Promise
from kvconform.engine.mentions import mentions
from kvconform.engine.observe import Observer
from kvconform.engine.oracle import Stream
from kvconform.engine.plans import Plans
from kvconform.engine.recorder import ESCAPING, Recorder
from kvconform.engine.untouched import Watched, shape_of
from kvconform.engine.worker import BeyondError, Worker
from kvconform.scenario.errors import HarnessError, UsageError
from kvconform.scenario.identity import Identity
from kvconform.scenario.shape import Shape
from kvconform.scenario.target import Target
from kvconform.scenario.trace import Event, Kind, Trace


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
        self._recorder = Recorder(trace, index, modules | {target.module}, folder)
        self._recorder.step = begun
        self._statuses: dict[str, Any] = {}
        self._lookups: dict[str, tuple[int, bool]] = {}
        self._held: dict[str, list[int]] = {}
        self._admitted: set[str] = set()
        self._aborts: list[str] = []
        self._queue: deque[tuple[Any, bytes, Any, Step]] = deque()
        self._snapshot: Any = None
        self._watched = Watched()
        self._misread: list[tuple[str, Found]] = []
        self._unprocessed: list[frozenset[int]] = []
        self._marks: deque[list[Any]] = deque()
        self._left_with: dict[str, Any] = {}
        self._rested = False
        self._plans = Plans()
        self._admission = Admission("", {})
        self._kept: set[str] = set()
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
        self._observer = Observer(
            self._recorder, trace, index, self.config, chains, parts.hash_block_size
        )
        self._recorder.wrap(
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
                self._observer.scheduler_half(self.scheduler),
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
        self._children = [
            Child(
                child, connector, self._recorder, lambda: self._admission,
                lambda: self.scheduler.requests, shape.ranks, shape.block_size,
            )
            for child, connector in enumerate(compat.children(self.connector))
        ]  # fmt: skip
        self.workers: list[Worker] = []
        for rank, config in enumerate(self._configs):
            with self._scope(rank, None):
                connector = compat.build_worker_connector(config, parts, shape, rank // shape.tp)
            self._recorder.wrap(
                connector, "worker half", rank, after=self._observer.worker_half(rank)
            )
            for child, half in zip(self._children, compat.children(connector), strict=True):
                child.add_worker(half, rank)
            worker = Worker(
                rank, self.memory, config, connector, streams.__getitem__, self._depth > 1
            )
            with self._scope(rank, connector):
                worker.register()
            self.workers.append(worker)
        self._shake_hands()
        self._aggregator = compat.world_output(self.connector, shape.ranks)

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
        return self._recorder.step

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
            and not self._kept
        )
        if emptied:
            self.memory.empty()
        self.trace.emit(
            Event(
                Kind.RESET, self.index, self.step_number, None, None,
                {"running": choices.get("reset_running_requests", False),
                 "connector": choices.get("reset_connector", False), "ok": done},
            )
        )  # fmt: skip
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
            self._emit_rested()
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
        self._recorder.step += 1
        self._admitted.clear()
        with self._phase():
            so = self.scheduler.schedule()
        self._hand_over_new_blocks(so)
        self._observe()
        self._emit_schedule(so)
        self._emit_common(so)
        self._check_halt()
        of_children = Step(self._children)
        metadata, blob = self._pack(so)
        steps = [pickle.loads(blob) for _ in self.workers]
        for worker, step in zip(self.workers, steps, strict=True):
            with self._scope(worker.rank, worker.connector), self._phase():
                worker.prepare(step)
        self.memory.apply()
        outputs = []
        self._observer.begin_step()
        for worker, step in zip(self.workers, steps, strict=True):
            with self._scope(worker.rank, worker.connector), self._phase():
                output = worker.execute(step, self._note_misread)
                self._check_halt()  # what cannot be pickled has been objected to
                outputs.append(pickle.loads(pickle.dumps(output)))
            self._check_halt()  # after a wrong answer nothing more can be made of the step
            for child in self._children:
                child.ran(worker.rank)
            self._emit_ran(worker.rank, compat.reported(outputs[-1].kv_connector_output))
        reports = [compat.reported(o.kv_connector_output) for o in outputs]
        self._unprocessed.append(frozenset().union(*(r.invalid for r in reports)))
        self._marks.append([worker.mark for worker in self.workers])
        self._blame_misread()
        with self._phase():
            output = outputs[0]
            if self._aggregator is not None:
                # The first rank of the last stage speaks for all.
                output = self._aggregator.aggregate(outputs, self.shape.ranks - self.shape.tp)
        of_children.ran()
        return so, metadata, output, of_children

    def _pack(self, so: Any) -> tuple[bytes, bytes]:
        """The step as it goes over the wire, and the metadata alone, to see whether it changes."""
        try:
            return pickle.dumps(so.kv_connector_metadata), pickle.dumps(so)
        except Exception as error:
            self._wire("unpicklable", f"{type(error).__name__}: {error}")
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
        self._emit_report(Kind.OUTPUT, None, compat.reported(output.kv_connector_output))
        if (
            so.kv_connector_metadata is not None
            and pickle.dumps(so.kv_connector_metadata) != metadata
        ):
            self._wire(
                "aliased",
                f"the {type(so.kv_connector_metadata).__name__} of the step changed after it had "
                "been handed out, and before its report was processed",
            )
        self._observer.processed()
        with self._phase():
            delivered = self.scheduler.update_from_output(so, output)
        self._observer.logged(delivered)
        self._propose(so)
        self._unprocessed.pop(0)
        for outputs in delivered.values():
            for one in outputs.outputs:
                self.trace.emit(
                    Event(
                        Kind.TOKENS, self.index, self.step_number, one.request_id, None,
                        {
                            "tokens": [int(t) for t in one.new_token_ids],
                            "finish": None if one.finish_reason is None else str(one.finish_reason),
                        },
                    )
                )  # fmt: skip
                if one.finish_reason is not None:
                    params = one.kv_transfer_params
                    self.delivered.append(Delivered(one.request_id, str(one.finish_reason), params))
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
            if not self._recorder.came_from_hook(error):
                data = self._recorder.describe(error)
                own = data["where"].startswith(("kvconform.engine", "kvconform.faults"))
                if own and not isinstance(error, BeyondError):
                    raise HarnessError(
                        f"kvconform itself failed in {data['where']}, line {data['line']}: "
                        f"{data['error']}: {data['message']}"
                    ) from error
                self.trace.emit(Event(Kind.BROKE, self.index, self.step_number, data=data))
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
                self._held.pop(name, None)
                self._lookups.pop(name, None)
        self._statuses = now

    def _status(self, request: str, old: Any, new: Any) -> None:
        names = [None if status is None else status.name for status in (old, new)]
        data = {"old": names[0], "new": names[1]}
        if (names[1] or "").startswith("FINISHED"):
            self._kept.add(request)
            # What a window no longer sees has been given back while the request ran.
            left = self.scheduler.kv_cache_manager.get_block_ids(request)
            self._held[request] = [b for ids in left for b in ids] or self._held.get(request, [])
        else:
            self._kept.discard(request)
        if names == ["WAITING_FOR_REMOTE_KVS", None]:
            self.forgotten_loading.add(request)
        self.trace.emit(Event(Kind.STATUS, self.index, self.step_number, request, None, data))

    def _before_alloc(self, request: Any, _blocks: Any, external: int) -> None:
        """Blocks were allocated: they change hands, and what the connector promised is owed."""
        self._watched.remember(request)
        name = request.request_id
        self._admitted.add(name)
        # The argument holds all blocks of the request, or (until 0.13) the new ones of this call.
        groups = [list(ids) for ids in self.scheduler.kv_cache_manager.get_block_ids(name)]
        flat = [b for ids in groups for b in ids]
        fresh = request.num_computed_tokens == 0
        local, is_async = 0, False
        if fresh:
            local, is_async = self._lookups.get(name, (0, False))
            hits = {b for ids in groups for b in ids[: local // self.shape.block_size]}
            self._hand_over([b for b in flat if b not in hits], name)
        else:
            held = set(self._held.get(name, ()))
            self._hand_over([b for b in flat if b not in held], name)
        self._held[name] = flat
        if external > 0:
            size = self.shape.block_size
            span = slice(local // size, -(-(local + external) // size))
            promised = tuple(b for ids in groups for b in ids[span] if b)
            self._plans.promised(name, promised)
            self.memory.promise(Promise(name, local, local + external, is_async, promised))
        data = {"local": local, "external": external, "async": is_async and external > 0,
                "fresh": fresh, "blocks": groups}  # fmt: skip
        self._admission = Admission(name, data)
        self.trace.emit(Event(Kind.ADMITTED, self.index, self.step_number, name, None, data))

    def _after_lookup(self, request: Any, local: int, answer: Any) -> None:
        self._compare("get_num_new_matched_tokens", request)
        is_async = isinstance(answer, tuple) and len(answer) == 2 and bool(answer[1])
        self._lookups[request.request_id] = (local, is_async)

    def _hand_over(self, blocks: list[int], name: str) -> None:
        """Blocks change hands; not those, if vLLM is right, of a request that it keeps."""
        for kept in self._kept - {name}:
            lost = sorted(set(blocks).intersection(self._held.get(kept, ())) - {0})
            if lost:
                self.trace.emit(
                    Event(
                        Kind.GIVEN, self.index, self.step_number, kept, None,
                        {"blocks": lost, "to": name},
                    )
                )  # fmt: skip
        self.memory.hand_over(blocks, name)

    def _hand_over_new_blocks(self, so: Any) -> None:
        cached = so.scheduled_cached_reqs
        for name, new_ids in zip(cached.req_ids, cached.new_block_ids, strict=True):
            if new_ids is None or name in self._admitted:
                continue
            flat = [b for ids in new_ids for b in ids]
            self._hand_over(flat, name)
            self._held.setdefault(name, []).extend(flat)

    def _compare(self, hook: str, request: Any, *_: Any) -> None:
        """A hook was called with this request, and may not have changed it."""
        changed = self._watched.changed(request)
        if changed is not None:
            self._wire("request", changed, hook)

    def _before_meta(self, so: Any) -> None:
        self._snapshot = shape_of(so)

    def _after_meta(self, so: Any, metadata: Any) -> None:
        for name, told in self._plans.look(metadata, self.scheduler.requests):
            self.trace.emit(
                Event(
                    Kind.PLANNED, self.index, self.step_number, name, None,
                    {"blocks": sorted(told)},
                )
            )  # fmt: skip
        if shape_of(so) != self._snapshot:
            self._wire("modified", "build_connector_meta changed the scheduler's output")

    def planned(self, *lists: Sequence[int]) -> bool:
        """Whether the metadata of the last plan holds all these lists, as they are."""
        return self._plans.holds(*lists)

    def _wire(self, problem: str, detail: str, hook: str = "build_connector_meta") -> None:
        self.trace.emit(
            Event(
                Kind.WIRE, self.index, self.step_number, None, None,
                {"problem": problem, "detail": detail, "hook": hook},
            )
        )  # fmt: skip

    def counted(self, request: str, blocks: Sequence[int]) -> bool:
        """Whether the scheduler counts all these blocks of a request as computed, or about to be.

        Only of a single KV group.
        """
        known, held = self.scheduler.requests.get(request), self._held.get(request, [])
        if known is None:
            return False
        full = held[: known.num_computed_tokens // self.shape.block_size]
        return set(blocks) <= set(full)

    def foreign(self, request: str, blocks: Sequence[int]) -> list[int]:
        """Those of ``blocks`` that a request does not have; none once it is forgotten."""
        held = self._held.get(request)
        return [] if held is None else sorted(set(blocks) - set(held))

    def _emit_schedule(self, so: Any) -> None:
        self.trace.emit(
            Event(
                Kind.SCHEDULED, self.index, self.step_number, None, None,
                {
                    "tokens": dict(so.num_scheduled_tokens),
                    "free": self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks(),
                    "finished": set(so.finished_req_ids),
                    "preempted": compat.preempted(so),
                },
            )
        )  # fmt: skip

    def _emit_common(self, so: Any) -> None:
        """What vLLM says that all scheduled requests have in common, beside what they have.

        Releases with cascade attention read the first so many blocks once, for the whole batch.
        """
        said = compat.common_prefix_blocks(so)
        if not any(said) or not so.num_scheduled_tokens:  # of nobody, nothing is read
            return
        manager = self.scheduler.kv_cache_manager
        tables = [manager.get_block_ids(name) for name in so.num_scheduled_tokens]
        common = []
        for group, count in enumerate(said):
            columns = zip(*(table[group][:count] for table in tables), strict=False)
            same = itertools.takewhile(lambda column: len(set(column)) == 1, columns)
            common.append(sum(1 for _ in same))
        self.trace.emit(
            Event(
                Kind.COMMON, self.index, self.step_number, None, None,
                {"said": said, "common": common, "requests": list(so.num_scheduled_tokens)},
            )
        )  # fmt: skip

    def _emit_rested(self) -> None:
        """vLLM's loop would rest now: what it keeps it would give back when a request comes."""
        held = [name for name, request in self.scheduler.requests.items() if request.is_finished()]
        if held and not self._rested:
            self._rested = True
            self.trace.emit(
                Event(Kind.RESTED, self.index, self.step_number, held[0], None, {"held": held})
            )

    def _emit_ran(self, rank: int, report: compat.Report) -> None:
        self.memory.failed(report.invalid)
        for name in report.failed:
            self.memory.failed_request(name)
        self._emit_report(Kind.RAN, rank, report)

    def _emit_report(self, kind: Kind, rank: int | None, report: compat.Report) -> None:
        data = {
            "recving": set(report.recving),
            "sending": set(report.sending),
            "invalid": set(report.invalid),
            "failed": set(report.failed),
        }
        if any(data.values()):
            self.trace.emit(Event(kind, self.index, self.step_number, None, rank, data))

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
            for child in self._children if verdict.kind != "overwritten" else ():
                if promise and child.loads(promise.request):
                    child.tell(Kind.WRONG_KV, request, data, found.rank)
            self.trace.emit(
                Event(Kind.WRONG_KV, self.index, self.step_number, request, found.rank, data)
            )

    # -- the end ----------------------------------------------------------------------------------

    def leftovers(self, restless: list[str], foreign_clock: bool) -> bool:
        """Emit what is left over in an engine that should be empty; True when nothing is.

        ``restless``: threads of the target that may still do something about it;
        ``foreign_clock``: it speaks of clocks, and never asked the one that we can move.
        """
        scheduler, manager = self.scheduler, self.scheduler.kv_cache_manager
        self._left_with = {"restless": restless, "foreign_clock": foreign_clock}
        self._observer.log()
        before = len(self.trace)
        for name, request in scheduler.requests.items():
            self.left("request", name, request.status.name)
        for holder, held in compat.holders(scheduler):
            names = [getattr(h, "request_id", str(h)) for h in held]
            self.left(holder, min(names), f"{len(names)} entries")
        pool = manager.block_pool
        free = pool.get_num_free_blocks()
        if free != self.shape.num_blocks - 1:
            owners = {self.memory.owners[b.block_id] for b in pool.blocks[1:] if b.ref_cnt}
            first = next(iter(sorted(o for o in owners if o)), None)
            self.left("blocks", first, f"{self.shape.num_blocks - 1 - free} not given back")
        for group, single in enumerate(manager.coordinator.single_type_managers):
            for name in single.req_to_blocks:
                self.left(f"block table of group {group}", name, "still there")
        halves = {child.index: child.halves[0] for child in self._children}
        for (which, hook), pending in list(self._recorder.pending.items()):
            # vLLM may have asked last when something was under way: here it would ask again.
            half = self.connector if which is None else halves[which]
            if pending and getattr(half, hook)():
                self.left("pending", None, hook, which)
        if self._aggregator is not None:
            for name, what in compat.awaited(self._aggregator).items():
                self.left("aggregator", name, what)
        if len(self.trace) == before:
            self._reset_at_last()
        return len(self.trace) == before

    def _reset_at_last(self) -> None:
        """Nothing is left over: the prefix cache can be reset, and is empty then."""
        with self._phase():
            done = bool(self.scheduler.reset_prefix_cache())
        blocks = self.scheduler.kv_cache_manager.block_pool.blocks
        found = sum(block.block_hash is not None for block in blocks)
        if not done or found:
            self.left("prefix cache", None, f"{found} blocks can be found" if done else "in use")

    def remembered(self, names: frozenset[str], packages: frozenset[str]) -> None:
        """Emit which of these requests, all of them gone, the connector still keeps something of.

        ``packages``: whose objects are the target's.
        """
        for child in self._children:
            remembered = child.remembers(names, packages)
            if remembered is not None:
                self.left("state", *remembered, child.index)
        halves = [self.connector, *(worker.connector for worker in self.workers)]
        for half in halves:
            for name, where in mentions(half, names, packages):
                self.left("state", name, where)
                break  # one is enough, of each half

    def left(self, what: str, owner: str | None, detail: str, child: int | None = None) -> None:
        """Something is left over; ``owner``: the request that it is of, if it is of one.

        ``child``: whose it is, in a composition.
        """
        data = {"what": what, "detail": detail, "status": self.status(owner) if owner else None,
                **self._left_with}  # fmt: skip
        self.trace.tell(Event(Kind.LEFT, self.index, self.step_number, owner, None, data), child)

    def _all_configs(self) -> list[Any]:
        return [self.config, *self._configs]

    def shutdown(self) -> None:
        """Shut both halves down, as the engine does; changed configs are not used again."""
        if [compat.config_state(c) for c in self._all_configs()] != self._config_states:
            compat.forget_configs()
            self.trace.emit(
                Event(
                    Kind.LOG, self.index, self.step_number,
                    data={"level": "WARNING", "logger": "kvconform",
                          "message": "the target changed vLLM's config during the run"},
                )
            )  # fmt: skip
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
