"""Books that a scheduler half keeps of each request's blocks, and that go wrong.

``Bookkeeper`` and ``SavesInStep`` are right: together they save each block in the step that fills
it, by a list of blocks that follows what vLLM's scheduler says.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from kvconform.connectors.ascend.carrier import delivered
from kvconform.connectors.ascend.connector import AscendConnector
from kvconform.connectors.ascend.scheduler import SchedulerHalf
from kvconform.connectors.ascend.worker import WorkerHalf

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

    from kvconform.connectors.ascend.metadata import StepJobs

Finish = tuple[bool, dict[str, Any] | None]
Finished = tuple[set[str] | None, set[str] | None]
Entry = tuple[str, list[int] | None, bool, int]
"""Request, its new blocks, whether they are all that it has, tokens computed before the step."""


@dataclass(eq=False)
class Book:
    """What is written down of one request.

    Attributes:
        request: whose.
        blocks: its device blocks.
        tokens: computed when the step has ended.
        stored: leading blocks that have been dealt with.
    """

    request: Request
    blocks: list[int] = field(default_factory=list)
    tokens: int = 0
    stored: int = 0


class Bookkeeper(SchedulerHalf):
    """Plans the save of each block for the step that fills it (right)."""

    wait = True

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._books: dict[str, Book] = {}

    def update_state_after_alloc(
        self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int
    ) -> None:
        super().update_state_after_alloc(request, blocks, num_external_tokens)
        book = self._books.setdefault(request.request_id, Book(request))
        self._admit(book, list(blocks.get_block_ids()[0]))

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> StepJobs:
        for request_id in scheduler_output.preempted_req_ids or ():
            if request_id in self._books:
                self._preempt(self._books[request_id])
        self._write(list(entries(scheduler_output)), scheduler_output.num_scheduled_tokens)
        return super().build_connector_meta(scheduler_output)

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        """What was computed on KV that was not loaded is not kept."""
        report = delivered(connector_output)
        for job_id, closing in report.closings.items() if report is not None else ():
            bad = self._open.get(job_id)
            if bad is None or not closing.failed or bad.job.direction == "save":
                continue
            for opened in self._open.values():
                opened.failed |= opened.life is bad.life and opened.job.direction == "save"
        super().update_connector_output(connector_output)

    def request_finished(self, request: Request, block_ids: list[int]) -> Finish:
        self._books.pop(request.request_id, None)
        return super().request_finished(request, block_ids)

    def _save(self, request: Request, life: Any, block_ids: list[int]) -> bool:
        return False  # all has been saved

    # -- what mutants get wrong -------------------------------------------------------------------

    def _admit(self, book: Book, block_ids: list[int]) -> None:
        book.blocks = block_ids

    def _preempt(self, book: Book) -> None:
        book.blocks, book.stored = [], 0

    def _write(self, entries: list[Entry], scheduled: dict[str, int]) -> None:
        for entry in entries:
            self._write_one(entry, scheduled[entry[0]])

    def _write_one(self, entry: Entry, scheduled: int) -> bool:
        request_id, block_ids, all_of_them, computed = entry
        book = self._books[request_id]
        self._follow(book, block_ids, all_of_them)
        self._count(book, computed, scheduled)
        tokens = min(book.tokens, book.request.num_tokens)
        return self._store(book, tokens // self.settings.block_size)

    def _follow(self, book: Book, block_ids: list[int] | None, all_of_them: bool) -> None:
        if all_of_them:
            book.blocks = list(block_ids or ())
        else:
            book.blocks += block_ids or ()

    def _count(self, book: Book, computed: int, scheduled: int) -> None:
        book.tokens = computed + scheduled

    def _store(self, book: Book, full: int) -> bool:
        """Plan the save of the leading ``full`` blocks, as far as it is missing; False: refused."""
        request = book.request
        life = self._lives[request.request_id]
        start, full = book.stored, min(full, len(request.block_hashes), len(book.blocks))
        keys = self._keys(request, start)[: max(0, full - start)]
        book.stored = max(start, full)
        if not keys or not self.settings.may_save or life.epoch != self._epoch:
            return True
        job_id = self._new_id("save")
        granted = self.transport.reserve(job_id, keys)
        if granted:
            blocks = [book.blocks[start + i] for i in granted]
            keys = [keys[i] for i in granted]
            self._plan(job_id, request, life, "save", keys, blocks, wait=self.wait)
        return bool(granted)


def entries(scheduler_output: SchedulerOutput) -> Iterator[Entry]:
    """What vLLM says about the blocks of each request of a step."""
    for new in scheduler_output.scheduled_new_reqs:
        yield new.req_id, list(new.block_ids[0]), True, new.num_computed_tokens
    cached = scheduler_output.scheduled_cached_reqs
    for request_id, block_ids, computed in zip(
        cached.req_ids, cached.new_block_ids, cached.num_computed_tokens, strict=True
    ):
        blocks = list(block_ids[0]) if block_ids else None
        yield request_id, blocks, request_id in resumed(scheduler_output), computed


def resumed(scheduler_output: SchedulerOutput) -> set[str]:
    """Requests that come back after a preemption."""
    cached: Any = scheduler_output.scheduled_cached_reqs
    if hasattr(cached, "resumed_req_ids"):
        return set(cached.resumed_req_ids)
    came_back = zip(cached.req_ids, cached.resumed_from_preemption, strict=True)
    return {request_id for request_id, back in came_back if back}


class SavesInStep(WorkerHalf):
    """Waits in each step for the saves that belong to it (right)."""

    def wait_for_save(self) -> None:
        for job in self._start("save", "offer"):
            if job.wait:
                self._close(self.transport.wait(job.job_id))
                self._sends[job.request_id] -= 1
                self._sends += {}

    def get_finished(self, finished_req_ids: set[str]) -> Finished:
        self.wait_for_save()
        return super().get_finished(finished_req_ids)


class SavesAsItGoes(AscendConnector):
    """Right: each block is saved in the step that fills it."""

    scheduler_half_class: ClassVar[type[SchedulerHalf]] = Bookkeeper
    worker_half_class = SavesInStep


class _AppendsOnResume(Bookkeeper):
    def _preempt(self, book: Book) -> None:
        pass

    def _admit(self, book: Book, block_ids: list[int]) -> None:
        if not book.blocks:
            book.blocks = block_ids

    def _follow(self, book: Book, block_ids: list[int] | None, all_of_them: bool) -> None:
        super()._follow(book, block_ids, all_of_them and not book.stored)


class AppendsOnResume(SavesAsItGoes):
    """The blocks of a request that is resumed are appended to those that it had before (B-198)."""

    scheduler_half_class = _AppendsOnResume


class _AppendsAgain(Bookkeeper):
    def _admit(self, book: Book, block_ids: list[int]) -> None:
        book.blocks += block_ids

    def _follow(self, book: Book, block_ids: list[int] | None, all_of_them: bool) -> None:
        if not all_of_them:
            super()._follow(book, block_ids, all_of_them)


class AppendsAgain(SavesAsItGoes):
    """The second call after a background load brings all blocks again, and they are appended.

    B-149.
    """

    scheduler_half_class = _AppendsAgain


class _AssertsNewBlocks(Bookkeeper):
    def _follow(self, book: Book, block_ids: list[int] | None, all_of_them: bool) -> None:
        in_prompt = book.tokens < book.request.num_prompt_tokens
        assert block_ids is not None or not in_prompt, "a chunk of the prompt has new blocks"
        super()._follow(book, block_ids, all_of_them)


class AssertsNewBlocks(SavesAsItGoes):
    """Each chunk of a prompt must bring new blocks; some fit into those that are there (B-089)."""

    scheduler_half_class = _AssertsNewBlocks


class _StopsAtRefusal(Bookkeeper):
    def _write(self, entries: list[Entry], scheduled: dict[str, int]) -> None:
        for entry in entries:
            if not self._write_one(entry, scheduled[entry[0]]):
                break


class StopsAtRefusal(SavesAsItGoes):
    """When the store refuses one save, the books of the step's other requests are not kept.

    B-097.
    """

    scheduler_half_class = _StopsAtRefusal


class _AddsTheTotal(Bookkeeper):
    def _count(self, book: Book, computed: int, scheduled: int) -> None:
        book.tokens += computed + scheduled


class AddsTheTotal(SavesAsItGoes):
    """The tokens computed so far are taken for those of this step, and added up (B-151)."""

    scheduler_half_class = _AddsTheTotal


class _CountsOn(Bookkeeper):
    def _preempt(self, book: Book) -> None:
        super()._preempt(book)
        book.tokens = 0

    def _count(self, book: Book, computed: int, scheduled: int) -> None:
        book.tokens = max(book.tokens, computed if not book.tokens else 0) + scheduled


class CountsOn(SavesAsItGoes):
    """Counts the tokens of each step, and does not go back when vLLM does, after a failed load.

    B-157.
    """

    scheduler_half_class = _CountsOn


class _CountsOnResume(Bookkeeper):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._before: dict[str, int] = {}

    def _preempt(self, book: Book) -> None:
        super()._preempt(book)
        self._before[book.request.request_id] = book.tokens

    def _count(self, book: Book, computed: int, scheduled: int) -> None:
        super()._count(book, computed, scheduled)
        book.tokens += self._before.get(book.request.request_id, 0)


class CountsOnResume(SavesAsItGoes):
    """The tokens of a request that is resumed are counted on top of those before it was preempted.

    B-034.
    """

    scheduler_half_class = _CountsOnResume


class _SavesWhatIsAllocated(Bookkeeper):
    def _admit(self, book: Book, block_ids: list[int]) -> None:
        super()._admit(book, block_ids)
        self._store(book, len(block_ids))


class SavesWhatIsAllocated(SavesAsItGoes):
    """Blocks are saved when they have been allocated, not when they have been filled (B-110)."""

    scheduler_half_class = _SavesWhatIsAllocated


class _ExpectsHashes(Bookkeeper):
    def _write_one(self, entry: Entry, scheduled: int) -> bool:
        request = self._books[entry[0]].request
        full = (entry[3] + scheduled) // self.settings.block_size
        assert len(request.block_hashes) >= full, "a block that is computed has a hash"
        return super()._write_one(entry, scheduled)


class ExpectsHashes(SavesAsItGoes):
    """Drafts count as tokens: a block that they fill has no hash yet."""

    scheduler_half_class = _ExpectsHashes
