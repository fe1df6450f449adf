"""What one engine tells the trace: under its index, at its step."""

from __future__ import annotations

import itertools
from typing import Any

from kvconform.engine import compat
from kvconform.engine.recorder import Recorder
from kvconform.scenario.trace import Event, Kind, Trace


class Teller:
    """Tells what an engine's scheduler does.

    Args:
        trace: where it goes.
        index: of the engine.
        recorder: counts its steps.
    """

    def __init__(self, trace: Trace, index: int, recorder: Recorder) -> None:
        self._trace = trace
        self._index = index
        self._recorder = recorder
        self._rested = False

    def tell(
        self,
        kind: Kind,
        data: dict[str, Any],
        request: str | None = None,
        rank: int | None = None,
        child: int | None = None,
    ) -> None:
        """An event; ``child``: only this child of a composition would be told it."""
        event = Event(kind, self._index, self._recorder.step, request, rank, data)
        self._trace.tell(event, child)

    def wire(self, problem: str, detail: str, hook: str = "build_connector_meta") -> None:
        """Something is wrong with what crosses between the halves, or was given to a hook."""
        self.tell(Kind.WIRE, {"problem": problem, "detail": detail, "hook": hook})

    def scheduled(self, so: Any, scheduler: Any) -> None:
        """A step was scheduled."""
        self.tell(
            Kind.SCHEDULED,
            {
                "tokens": dict(so.num_scheduled_tokens),
                "free": scheduler.kv_cache_manager.block_pool.get_num_free_blocks(),
                "finished": set(so.finished_req_ids),
                "preempted": compat.preempted(so),
            },
        )

    def common(self, so: Any, scheduler: Any) -> None:
        """What vLLM says that all scheduled requests have in common, beside what they have.

        Releases with cascade attention read the first so many blocks once, for the whole batch.
        """
        said = compat.common_prefix_blocks(so)
        if not any(said) or not so.num_scheduled_tokens:  # of nobody, nothing is read
            return
        manager = scheduler.kv_cache_manager
        tables = [manager.get_block_ids(name) for name in so.num_scheduled_tokens]
        common = []
        for group, count in enumerate(said):
            columns = zip(*(table[group][:count] for table in tables), strict=False)
            same = itertools.takewhile(lambda column: len(set(column)) == 1, columns)
            common.append(sum(1 for _ in same))
        requests = list(so.num_scheduled_tokens)
        self.tell(Kind.COMMON, {"said": said, "common": common, "requests": requests})

    def rested(self, scheduler: Any) -> None:
        """vLLM's loop would rest now: what it keeps it would give back when a request comes."""
        held = [name for name, request in scheduler.requests.items() if request.is_finished()]
        if held and not self._rested:
            self._rested = True
            self.tell(Kind.RESTED, {"held": held}, held[0])

    def report(self, kind: Kind, rank: int | None, report: compat.Report) -> None:
        """What a rank, or all of them, reported in a step."""
        data = {
            "recving": set(report.recving),
            "sending": set(report.sending),
            "invalid": set(report.invalid),
            "failed": set(report.failed),
        }
        if any(data.values()):
            self.tell(kind, data, rank=rank)
