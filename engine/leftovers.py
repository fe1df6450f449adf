"""What is left over in an engine that should be empty."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvconform.engine import compat
from kvconform.engine.mentions import mentions
from kvconform.scenario.trace import Kind

if TYPE_CHECKING:
    from kvconform.engine.engine import Engine


class Leftovers:
    """What is left over in one engine at the end of the drain.

    Args:
        engine: which.
        restless: threads of the target that may still do something about it.
        foreign_clock: it speaks of clocks, and never asked the one that we can move.
    """

    def __init__(self, engine: Engine, restless: list[str], foreign_clock: bool) -> None:
        self._engine = engine
        self._with = {"restless": restless, "foreign_clock": foreign_clock}

    def look(self) -> bool:
        """Emit what there is; True when there is nothing."""
        engine = self._engine
        scheduler, manager = engine.scheduler, engine.scheduler.kv_cache_manager
        engine.observer.log()
        before = len(engine.trace)
        for name, request in scheduler.requests.items():
            self.left("request", name, request.status.name)
        for holder, held in compat.holders(scheduler):
            names = [getattr(h, "request_id", str(h)) for h in held]
            self.left(holder, min(names), f"{len(names)} entries")
        pool, blocks = manager.block_pool, engine.shape.num_blocks - 1
        free = pool.get_num_free_blocks()
        if free != blocks:
            owners = {engine.memory.owners[b.block_id] for b in pool.blocks[1:] if b.ref_cnt}
            first = next(iter(sorted(o for o in owners if o)), None)
            self.left("blocks", first, f"{blocks - free} not given back")
        for group, single in enumerate(manager.coordinator.single_type_managers):
            for name in single.req_to_blocks:
                self.left(f"block table of group {group}", name, "still there")
        halves = {child.index: child.halves[0] for child in engine.children}
        for (which, hook), pending in list(engine.recorder.pending.items()):
            # vLLM may have asked last when something was under way: here it would ask again.
            half = engine.connector if which is None else halves[which]
            if pending and getattr(half, hook)():
                self.left("pending", None, hook, which)
        if engine.aggregator is not None:
            for name, what in compat.awaited(engine.aggregator).items():
                self.left("aggregator", name, what)
        if len(engine.trace) == before:
            self._reset_at_last()
        return len(engine.trace) == before

    def _reset_at_last(self) -> None:
        """Nothing is left over: the prefix cache can be reset, and is empty then."""
        done, found = self._engine.empty_cache()
        if not done or found:
            self.left("prefix cache", None, f"{found} blocks can be found" if done else "in use")

    def remembered(self, names: frozenset[str], packages: frozenset[str]) -> None:
        """Emit which of these requests, all of them gone, the connector still keeps something of.

        ``packages``: whose objects are the target's.
        """
        engine = self._engine
        for child in engine.children:
            remembered = child.remembers(names, packages)
            if remembered is not None:
                self.left("state", *remembered, child.index)
        halves = [engine.connector, *(worker.connector for worker in engine.workers)]
        for half in halves:
            for name, where in mentions(half, names, packages):
                self.left("state", name, where)
                break  # one is enough, of each half

    def left(self, what: str, owner: str | None, detail: str, child: int | None = None) -> None:
        """Something is left over; ``owner``: the request that it is of, if it is of one.

        ``child``: whose it is, in a composition.
        """
        status = self._engine.status(owner) if owner else None
        data = {"what": what, "detail": detail, "status": status, **self._with}
        self._engine.teller.tell(Kind.LEFT, data, owner, child=child)
