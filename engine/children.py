"""The children of a composition, each watched as if vLLM called it alone.

vLLM's MultiConnector is one connector to vLLM. What each of its children is asked and answers is
told as events of their own (``Kind.CHILD``), in the words of a connector that is alone: what it was
admitted with, what its ranks reported, what came of that over all ranks. So each can be held to the
contract by itself, and what none of them owes is the composition's.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvconform.engine import compat
from kvconform.engine.mentions import mentions
from kvconform.engine.plans import Plans
from kvconform.engine.recorder import Recorder
from kvconform.engine.untouched import Watched, shape_of
from kvconform.scenario.trace import Event, Kind


@dataclass(frozen=True, slots=True)
class Admission:
    """What vLLM itself said when it gave a request its blocks: ``Kind.ADMITTED`` as data."""

    request: str
    data: Mapping[str, Any]


class Child:
    """One child of the composition of one engine.

    Args:
        index: which.
        connector: its scheduler half.
        recorder: of its engine.
        admission: asked for what vLLM has just said of the request that is being admitted.
        known: ids that the scheduler has not forgotten.
        ranks: workers.
        block_size: tokens per block.
    """

    def __init__(
        self,
        index: int,
        connector: Any,
        recorder: Recorder,
        admission: Callable[[], Admission],
        known: Callable[[], Mapping[str, Any]],
        ranks: int,
        block_size: int,
    ) -> None:
        self.index = index
        self.halves = [connector]
        self.metadata: Any = None
        self._recorder = recorder
        self._admission = admission
        self._known = known
        self._block_size = block_size
        self._watched = Watched()
        self._snapshot: Any = None
        self._plans = Plans()
        self._background: dict[str, bool] = {}  # how it promised to load, at the last lookup
        self._loads: set[str] = set()  # what it was told to load, at the last admission
        self._said: dict[int, compat.Report] = {}  # by rank, of this step
        self._aggregator = compat.world_output(connector, ranks)
        remember = self._watched.remember
        recorder.wrap(
            connector, "scheduler half", None, child=index,
            before={
                "get_num_new_matched_tokens": remember,
                "update_state_after_alloc": self._admitted,
                "build_connector_meta": self._before_meta,
                "request_finished": remember,
                "request_finished_all_groups": remember,
            },
            after={
                "get_num_new_matched_tokens": self._looked_up,
                "update_state_after_alloc": self._alone("update_state_after_alloc"),
                "build_connector_meta": self._after_meta,
                "request_finished": self._alone("request_finished"),
                "request_finished_all_groups": self._alone("request_finished"),
            },
        )  # fmt: skip

    def add_worker(self, connector: Any, rank: int) -> None:
        """Its worker half of this rank."""
        self.halves.append(connector)

        def finished(_: Any, answer: Any) -> None:
            self._add(rank, compat.report_of(answer))

        def failed(answer: Any) -> None:
            self._add(rank, compat.Report(invalid=frozenset(answer)))

        self._recorder.wrap(
            connector, "worker half", rank, child=self.index,
            after={
                "get_finished": finished,
                "get_transfer_results": finished,
                "get_block_ids_with_load_errors": failed,
            },
        )  # fmt: skip

    # -- scheduler half ---------------------------------------------------------------------------

    def _looked_up(self, request: Any, _: int, answer: Any) -> None:
        self._compare("get_num_new_matched_tokens", request)
        pair = isinstance(answer, tuple) and len(answer) == 2
        self._background[request.request_id] = pair and bool(answer[1])

    def _admitted(self, request: Any, _: Any, external: int) -> None:
        self._watched.remember(request)
        name, admission = request.request_id, self._admission()
        self._loads.discard(name)
        if external > 0:
            self._loads.add(name)
            local, size = admission.data["local"], self._block_size
            span = slice(local // size, -(-(local + external) // size))
            self._plans.promised(name, [b for ids in admission.data["blocks"] for b in ids[span]])
        is_async = external > 0 and self._background.get(name, False)
        self.tell(Kind.ADMITTED, name, {**admission.data, "external": external, "async": is_async})

    def _before_meta(self, so: Any) -> None:
        self._snapshot = shape_of(so)

    def _after_meta(self, so: Any, metadata: Any) -> None:
        self.metadata = metadata
        for name, told in self._plans.look(metadata, self._known()):
            self.tell(Kind.PLANNED, name, {"blocks": sorted(told)})
        if shape_of(so) != self._snapshot:
            self.wire("modified", "build_connector_meta changed the scheduler's output")

    def _alone(self, hook: str) -> Callable[..., None]:
        return lambda request, *_: self._compare(hook, request)

    def _compare(self, hook: str, request: Any) -> None:
        changed = self._watched.changed(request)
        if changed is not None:
            self.wire("request", changed, hook)

    def wire(self, problem: str, detail: str, hook: str = "build_connector_meta") -> None:
        """Something is wrong with what it hands over, or with what it was handed."""
        self.tell(Kind.WIRE, None, {"problem": problem, "detail": detail, "hook": hook})

    # -- worker halves ----------------------------------------------------------------------------

    def _add(self, rank: int, more: compat.Report) -> None:
        self._said[rank] = self._said.get(rank, compat.Report()).and_then(more)

    def ran(self, rank: int) -> None:
        """A rank has run its step."""
        self._report(Kind.RAN, self._said.get(rank, compat.Report()), rank)

    def output(self) -> compat.Report:
        """What came of the step over all ranks, as vLLM's aggregator counts."""
        said, self._said = self._said, {}
        if self._aggregator is None:
            return said.get(0, compat.Report())
        ranks = range(len(self.halves) - 1)
        return compat.aggregated(
            self._aggregator, [said.get(rank, compat.Report()) for rank in ranks]
        )

    def told(self, output: compat.Report) -> None:
        """The scheduler hears of it."""
        self._report(Kind.OUTPUT, output, None)

    def _report(self, kind: Kind, report: compat.Report, rank: int | None) -> None:
        data = {name: set(ids) for name, ids in report._asdict().items()}
        if any(data.values()):
            self.tell(kind, None, data, rank)

    # -- the rest ---------------------------------------------------------------------------------

    def loads(self, request: str) -> bool:
        """Whether it was the one to load what this request was promised last."""
        return request in self._loads

    def remembers(self, names: frozenset[str], packages: frozenset[str]) -> tuple[str, str] | None:
        """A name of those who have gone that it still keeps, and where."""
        return next((m for half in self.halves for m in mentions(half, names, packages)), None)

    def tell(
        self, kind: Kind, request: str | None, data: Mapping[str, Any], rank: int | None = None
    ) -> None:
        """Emit what it would be told, were it alone."""
        recorder = self._recorder
        event = Event(kind, recorder.engine, recorder.step, request, rank, dict(data))
        recorder.trace.tell(event, self.index)


class Step:
    """What the children handed out in one step, to see whether it changes, and what came of it."""

    def __init__(self, children: Sequence[Child]) -> None:
        self._children = children
        self._metadata = [child.metadata for child in children]
        self._blobs: list[bytes] = []
        self._outputs: list[compat.Report] = []
        for child in children:
            try:
                self._blobs.append(pickle.dumps(child.metadata))
            except Exception as error:
                child.wire("unpicklable", f"{type(error).__name__}: {error}")

    def ran(self) -> None:
        """All ranks have run it."""
        self._outputs = [child.output() for child in self._children]

    def processed(self) -> None:
        """The scheduler hears of it."""
        for child, output in zip(self._children, self._outputs, strict=True):
            child.told(output)
        for child, metadata, blob in zip(self._children, self._metadata, self._blobs, strict=True):
            if metadata is not None and pickle.dumps(metadata) != blob:
                name = type(metadata).__name__
                child.wire(
                    "aliased", f"the {name} of the step changed after it had been handed out"
                )
