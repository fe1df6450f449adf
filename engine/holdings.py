"""Which request has which blocks, as the scheduler says: when they change hands, and for whom."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvconform.engine.children import Admission
from kvconform.engine.memory import Memory, Promise
from kvconform.engine.plans import Plans
from kvconform.engine.telling import Teller
from kvconform.scenario.shape import Shape
from kvconform.scenario.trace import Kind


class Holdings:
    """The blocks of one engine's requests.

    Args:
        scheduler: vLLM's.
        memory: hears of each block that changes hands, and of each promise.
        shape: of the run.
        teller: of the engine.

    Attributes:
        kept: requests that have ended and whose blocks the scheduler keeps.
        admission: the last one.
        plans: promises that the metadata has not spoken of.
    """

    def __init__(self, scheduler: Any, memory: Memory, shape: Shape, teller: Teller) -> None:
        self._scheduler = scheduler
        self._memory = memory
        self._shape = shape
        self._teller = teller
        self._held: dict[str, list[int]] = {}  # of all groups, one after the other
        self._lookups: dict[str, tuple[int, bool]] = {}  # local tokens, and whether in background
        self._admitted: set[str] = set()  # in this step
        self.kept: set[str] = set()
        self.admission = Admission("", {})
        self.plans = Plans()

    # -- what becomes of a request ----------------------------------------------------------------

    def looked_up(self, request: str, local: int, answer: Any) -> None:
        """The connector was asked, and ``local`` tokens had been found before."""
        is_async = isinstance(answer, tuple) and len(answer) == 2 and bool(answer[1])
        self._lookups[request] = (local, is_async)

    def admitted(self, request: Any, external: int) -> None:
        """Blocks were allocated: they change hands, and what the connector promised is owed."""
        name = request.request_id
        self._admitted.add(name)
        # The argument holds all blocks of the request, or (until 0.13) the new ones of this call.
        groups = [list(ids) for ids in self._scheduler.kv_cache_manager.get_block_ids(name)]
        flat = [b for ids in groups for b in ids]
        fresh = request.num_computed_tokens == 0
        local, is_async = 0, False
        size = self._shape.block_size
        if fresh:
            local, is_async = self._lookups.get(name, (0, False))
            had = {b for ids in groups for b in ids[: local // size]}
        else:
            had = set(self._held.get(name, ()))
        self._hand_over([b for b in flat if b not in had], name)
        self._held[name] = flat
        if external > 0:
            span = slice(local // size, -(-(local + external) // size))
            promised = tuple(b for ids in groups for b in ids[span] if b)
            self.plans.promised(name, promised)
            self._memory.promise(Promise(name, local, local + external, is_async, promised))
        data = {"local": local, "external": external, "async": is_async and external > 0,
                "fresh": fresh, "blocks": groups}  # fmt: skip
        self.admission = Admission(name, data)
        self._teller.tell(Kind.ADMITTED, data, name)

    def ended(self, name: str) -> None:
        """A request has ended; the scheduler keeps its blocks until it is forgotten."""
        self.kept.add(name)
        # What a window no longer sees has been given back while the request ran.
        left = self._scheduler.kv_cache_manager.get_block_ids(name)
        self._held[name] = [b for ids in left for b in ids] or self._held.get(name, [])

    def goes_on(self, name: str) -> None:
        """A request that has not ended, or a new one of that id."""
        self.kept.discard(name)

    def forgotten(self, name: str) -> None:
        """The scheduler has forgotten a request."""
        self.kept.discard(name)
        self._held.pop(name, None)
        self._lookups.pop(name, None)

    # -- a step -----------------------------------------------------------------------------------

    def begin_step(self) -> None:
        """Nobody has been admitted in it yet."""
        self._admitted.clear()

    def scheduled(self, so: Any) -> None:
        """Blocks that running requests got in this step change hands."""
        cached = so.scheduled_cached_reqs
        for name, new_ids in zip(cached.req_ids, cached.new_block_ids, strict=True):
            if new_ids is None or name in self._admitted:
                continue
            flat = [b for ids in new_ids for b in ids]
            self._hand_over(flat, name)
            self._held.setdefault(name, []).extend(flat)

    def planned(self, metadata: Any) -> None:
        """The metadata of the step was built: of whose promises does it not speak whole?"""
        for name, told in self.plans.look(metadata, self._scheduler.requests):
            self._teller.tell(Kind.PLANNED, {"blocks": sorted(told)}, name)

    def _hand_over(self, blocks: list[int], name: str) -> None:
        """Blocks change hands; not those, if vLLM is right, of a request that it keeps."""
        for kept in self.kept - {name}:
            lost = sorted(set(blocks).intersection(self._held.get(kept, ())) - {0})
            if lost:
                self._teller.tell(Kind.GIVEN, {"blocks": lost, "to": name}, kept)
        self._memory.hand_over(blocks, name)

    # -- questions --------------------------------------------------------------------------------

    def counted(self, name: str, blocks: Sequence[int]) -> bool:
        """Whether the scheduler counts all these blocks of a request as computed, or about to be.

        Only of a single KV group.
        """
        known, held = self._scheduler.requests.get(name), self._held.get(name, [])
        if known is None:
            return False
        full = held[: known.num_computed_tokens // self._shape.block_size]
        return set(blocks) <= set(full)

    def foreign(self, name: str, blocks: Sequence[int]) -> list[int]:
        """Those of ``blocks`` that a request does not have; none once it is forgotten."""
        held = self._held.get(name)
        return [] if held is None else sorted(set(blocks) - set(held))
