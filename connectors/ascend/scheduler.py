"""The scheduler half: what may be loaded, what shall be saved, and which promises are open.

It plans jobs; the workers carry them out and report. Its knowledge is always late: under async
scheduling the next step has been scheduled before the report of this one comes. So nothing here
asks "is the request still there?" when a report comes: a job is its own record, from the moment it
is planned until every rank has closed it, whatever becomes of its request meanwhile.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kvconform.connectors.ascend.announcements import Announcer
from kvconform.connectors.ascend.carrier import delivered
from kvconform.connectors.ascend.groups import are_there
from kvconform.connectors.ascend.lives import FINISHED_ON_ITS_OWN, Life, OpenJob, Tables
from kvconform.connectors.ascend.metadata import Direction, Job, Source, StepJobs
from kvconform.connectors.ascend.settings import Settings
from kvconform.connectors.ascend.statistics import Tally
from kvconform.connectors.ascend.transport import Transport

if TYPE_CHECKING:
    from vllm.distributed.kv_events import KVCacheEvent
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request


class SchedulerHalf:
    """Plans loads and saves.

    Args:
        settings: the engine's.
        transport: the store, as seen from the scheduler.
    """

    def __init__(self, settings: Settings, transport: Transport) -> None:
        self.settings = settings
        self.groups = settings.groups
        self.transport = transport
        self._lives: dict[str, Life] = {}  # by request id
        self._open: dict[str, OpenJob] = {}  # by job id
        self._outbox: list[Job] = []  # not handed out yet
        self._epoch = 0
        self._numbers = itertools.count()
        self.tally = Tally()
        self._announcer: Announcer | None = None
        # Of several groups a block is there only with others of the same prefix: no event says so.
        if settings.announces and settings.may_save and not self.groups.are_several:
            announcer = Announcer(settings.block_size)
            self._announcer = announcer if transport.watch(announcer) else None

    # -- loading ----------------------------------------------------------------------------------

    def get_num_new_matched_tokens(
        self, request: Request, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        """Tokens that can be loaded beyond ``num_computed_tokens``, and whether in the background.

        May be asked any number of times before the request is admitted, or never is (SCH-04): it
        holds nothing. Bounds: SCH-01, SCH-02, SCH-06.
        """
        life = self._lives.setdefault(request.request_id, Life())
        life.local_blocks, tail = divmod(num_computed_tokens, self.settings.block_size)
        life.epoch = self._epoch
        life.pulls = False
        if (
            not self.settings.may_load
            # One failure is enough: vLLM asks again at once, and would for ever (SCH-05).
            or life.load_failed
            # vLLM computes the last token again: of one alone it would know nothing, and ask again.
            or request.num_tokens == 1
            # It wants its prompt computed, for the logprobs. vLLM sees to that since 0.32.
            or getattr(request, "skip_reading_prefix_cache", False)
            # Only whole blocks can be loaded, and none that vLLM has begun to fill.
            or tail
        ):
            return 0, False
        remote = self._remote(request, life)
        if remote is not None:
            # All of the prompt is there. vLLM computes its last token again in any case, so that
            # one alone is not worth a transfer.
            there = min(remote["remote_num_tokens"], request.num_tokens)
            if there < request.num_tokens:  # its router put more behind it: whole blocks (SCH-06)
                there -= there % self.settings.block_size
            wanted = (
                num_computed_tokens < min(there, request.num_tokens - 1)
                and self.groups.can_end(there, request.num_tokens)
                and are_there(_tables_of(remote), [*self.groups.others(life.local_blocks, there)])
            )
            life.pulls = life.in_background = wanted
            return (there - num_computed_tokens if wanted else 0), wanted
        found = self.transport.lookup(self._keys(request, life.local_blocks))
        if found is None:
            return None, False
        if self.groups.are_several:
            found = self._found_in_all(request, life.local_blocks, found)
        blocks, life.in_background = self._promise(request, life.local_blocks, found)
        return blocks * self.settings.block_size, life.in_background

    def _found_in_all(self, request: Request, start: int, found: int) -> int:
        """Blocks that all groups have, of ``found`` that the first one has from ``start`` on.

        Where the store does not say that the others have theirs, they have not.
        """
        for count in range(found, 0, -1):
            end = (start + count) * self.settings.block_size
            if self.groups.can_end(end, request.num_tokens):
                keys = self._keys_of_others(request, start, end)
                if self.transport.lookup(keys) == len(keys):
                    return count
        return 0

    def _remote(self, request: Request, life: Life) -> dict[str, Any] | None:
        """What another engine offers for this request and has not been told about yet."""
        params = request.kv_transfer_params if self.settings.offers else None
        if not params or not params.get("do_remote_prefill") or life.remote_is_done:
            return None
        # Ranks read from their own kind: another number of them has cut the KV differently.
        return params if params.get("remote_world_size") == self.settings.world_size else None

    def _keys(self, request: Request, start: int) -> list[bytes]:
        """Names of the request's full blocks from block ``start`` on.

        vLLM's block hashes cover all that KV depends on: the tokens up to the block's end, and the
        request's salt, adapter and media; but not for the model, which engines over one store need
        not have in common (DAT-11).
        """
        stop = request.num_tokens // self.settings.block_size
        return [self._key(0, block_hash) for block_hash in request.block_hashes[start:stop]]

    def _keys_of_others(self, request: Request, start: int, tokens: int) -> list[bytes]:
        """Names of what the groups beside the first one need, see ``Groups.others``."""
        hashes = request.block_hashes
        return [self._key(group, hashes[i]) for group, i in self.groups.others(start, tokens)]

    def _key(self, group: int, block_hash: bytes) -> bytes:
        return self.settings.layout + self.groups.key(group, block_hash)

    def _promise(self, request: Request, local: int, found: int) -> tuple[int, bool]:
        """Blocks to promise of ``found`` ones beyond ``local`` ones, and whether in the background.

        A background load may reach the prompt's very end: vLLM then computes the last token again.
        Any other leaves a token for the forward of its own step.
        """
        if found >= self.settings.async_min_blocks:
            return found, True
        spare = (request.num_tokens - 1) // self.settings.block_size - local
        return max(0, min(found, spare)), False

    def update_state_after_alloc(
        self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int
    ) -> None:
        """The request is admitted: plan what vLLM asks for, which may be less than was promised.

        After a background load comes a second call with 0 tokens, which starts nothing (SCH-07,
        SCH-09).
        """
        life = self._lives[request.request_id]
        remote = self._remote(request, life)
        if remote is not None and not (life.pulls and num_external_tokens):
            # All was found locally, or vLLM wants none of it: the other engine is told all the
            # same, for it keeps the blocks until then. Nobody waits, so nothing is reported.
            self._release(request, life, remote)
        if not num_external_tokens:
            return
        start, size = life.local_blocks, self.settings.block_size
        count = -(-num_external_tokens // size)
        tables = blocks.get_block_ids()
        # The blocks before these were found locally: others may be reading them (DAT-02).
        block_ids = list(tables[0][start : start + count])
        others = [*self.groups.others(start, start * size + num_external_tokens)]
        block_ids += [tables[group][index] for group, index in others]
        if remote is not None:
            there = list(remote["remote_block_ids"][start : start + count])
            there += [_tables_of(remote)[group][index] for group, index in others]
            life.remote_is_done = True
            self._plan(
                self._new_id("pull"), request, life, "pull", (), block_ids,
                source=source_of(remote, there),
            )  # fmt: skip
            return
        keys = self._keys(request, start)[:count]
        keys += self._keys_of_others(request, start, start * size + num_external_tokens)
        job_id = self._new_id("load")
        # Should less be there than was promised, the load goes out all the same: the ranks find
        # what is missing, and vLLM learns of it in the one way that it understands (WRK-07).
        self.transport.pin(job_id, keys)
        self._plan(job_id, request, life, "load", keys, block_ids, wait=not life.in_background)

    # -- from an engine that prefills -------------------------------------------------------------

    def _release(self, request: Request, life: Life, remote: dict[str, Any]) -> None:
        """Tell the engine that offers KV for this request that it is not needed."""
        life.remote_is_done = True
        job_id = self._new_id("release")
        # Not counted as open: it touches no block, and the offer's lease answers for its loss.
        self._outbox.append(
            Job(job_id, request.request_id, "release", (), (), False, source_of(remote, ()))
        )

    def _offer(self, request: Request, life: Life, block_ids: list[int]) -> dict[str, Any] | None:
        """Offer the prompt's KV to the engine that decodes; the params that lead it there."""
        params = request.kv_transfer_params
        if (
            not params
            or not params.get("do_remote_decode")
            or not self.settings.may_save
            or not self.settings.offers
            or request.status not in FINISHED_ON_ITS_OWN
        ):
            return None
        count = -(-request.num_prompt_tokens // self.settings.block_size)
        blocks = block_ids[:count]
        if len(blocks) < count:
            return None  # until 0.23 a preempted request may end, with a token that was under way
        # Of a window, what is null was given back: whoever needs it sees that, see ``are_there``.
        tables = [list(table[:count]) for table in life.tables[1:]]
        others = [block for table in tables for block in table if self.groups.is_there(block)]
        job_id = self._new_id("offer")
        self._plan(job_id, request, life, "offer", (), [*blocks, *others])
        address = self.settings.offer_address
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_engine_id": self.settings.engine_id,
            "remote_offer_id": job_id,
            "remote_block_ids": list(blocks),
            **({"remote_other_block_ids": tables} if tables else {}),
            "remote_num_tokens": request.num_prompt_tokens,
            "remote_world_size": self.settings.world_size,
            "remote_address": address,
            # Offers are numbered anew when an engine comes back; within a process none does.
            "remote_instance": self.settings.instance if address else "",
        }

    # -- saving -----------------------------------------------------------------------------------

    def request_finished(
        self, request: Request, block_ids: list[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        """Save what the request leaves behind; True: its blocks must live until that is done.

        May come for a request in any state, known here or not (SCH-16). A load that is open goes
        on: vLLM keeps the blocks of an aborted one until it hears ``finished_recving``, and that
        is the one completion it gets (SCH-19).
        """
        life = self._lives.pop(request.request_id, None)
        if life is None:
            life = Life(epoch=-1)  # never looked up: it holds nothing
        remote = self._remote(request, life)
        if remote is not None:
            self._release(request, life, remote)
        params = self._offer(request, life, block_ids)
        saves = self._save(request, life, block_ids)
        return saves or params is not None, params

    def end_of_other_groups(self, request: Request, tables: Tables) -> None:
        """What the request holds in every group; ``request_finished`` follows."""
        life = self._lives.get(request.request_id)
        if life is not None:
            life.tables = tables

    def _save(self, request: Request, life: Life, block_ids: list[int]) -> bool:
        if not self._may_save(request, life):
            return False
        final = self._final_blocks(request, block_ids)
        keys, block_ids = self._keys(request, 0)[:final], list(block_ids[:final])
        for group, table in enumerate(life.tables[1:], 1):
            for block_hash, block in zip(request.block_hashes, table[:final], strict=False):
                if self.groups.is_there(block):  # a window gives back what it does not see any more
                    keys.append(self._key(group, block_hash))
                    block_ids.append(block)
        job_id = self._new_id("save")
        granted = self.transport.reserve(job_id, keys)
        if not granted:
            return False
        if self._announcer is not None:
            self._announcer.expect(job_id, request, {keys[i]: i for i in granted})
        keys = [keys[i] for i in granted]
        self._plan(job_id, request, life, "save", keys, [block_ids[i] for i in granted])
        return True

    def _may_save(self, request: Request, life: Life) -> bool:
        return (
            self.settings.may_save
            and request.status in FINISHED_ON_ITS_OWN
            # What it holds may be older than the reset, and must not be found after it (SCH-22).
            and life.epoch == self._epoch
        )

    def _final_blocks(self, request: Request, block_ids: list[int]) -> int:
        """Leading blocks of the request whose KV is complete and will not change (DAT-03).

        The last token has been sampled but not computed; under async scheduling, a step that is
        computing it may be on its way, which ``num_computed_tokens`` already counts.
        """
        size = self.settings.block_size
        return min(
            len(block_ids),
            len(request.block_hashes),
            (request.num_tokens - 1) // size,
            request.num_computed_tokens // size,
        )

    # -- jobs -------------------------------------------------------------------------------------

    def _new_id(self, direction: Direction) -> str:
        return f"{self.settings.engine_id}/{direction}-{next(self._numbers)}"

    def _plan(
        self,
        job_id: str,
        request: Request,
        life: Life,
        direction: Direction,
        keys: Sequence[bytes],
        block_ids: Sequence[int],
        wait: bool = False,
        source: Source | None = None,
    ) -> None:
        name = request.request_id
        job = Job(job_id, name, direction, tuple(keys), tuple(block_ids), wait, source)
        self._open[job_id] = OpenJob(job, life, self.settings.world_size)
        if direction in ("load", "pull"):
            self.tally.add(hits=1, hit_blocks=len(block_ids))
        self._outbox.append(job)

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> StepJobs:
        """The jobs planned since the last call, each handed out once (SCH-11, SCH-12).

        None of them can have lost its blocks meanwhile (SCH-28): loads are planned by the very
        ``schedule()`` that ends with this call, and saves for requests whose blocks vLLM keeps.
        """
        jobs = tuple(self._outbox)
        self._outbox.clear()
        return StepJobs(jobs)

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        """Count the ranks that closed a job; with the last one, settle with the store (SCH-21)."""
        report = delivered(connector_output)
        if report is None:
            return
        for job_id, closing in report.closings.items():
            opened = self._open.get(job_id)
            if opened is None:
                continue  # a step that was under way at shutdown
            opened.ranks_left -= closing.ranks
            opened.failed |= closing.failed
            if closing.failed and opened.job.direction in ("load", "pull"):
                opened.life.load_failed = True
            if not opened.ranks_left:
                del self._open[job_id]
                self._settle(opened)

    def _settle(self, closed: OpenJob) -> None:
        """Every rank has let go of the job's blocks."""
        match closed.job.direction:
            case "load":
                self.transport.unpin(closed.job.job_id)
            case "save" if closed.failed:
                self.transport.abandon(closed.job.job_id)
            case "save":
                self.transport.commit(closed.job.job_id)
        if self._announcer is not None:
            self._announcer.settled(closed.job.job_id)

    def take_events(self) -> list[KVCacheEvent]:
        """What the store holds of what this engine saved, and holds no longer (SCH-24)."""
        return self._announcer.take() if self._announcer is not None else []

    # -- the rest ---------------------------------------------------------------------------------

    def reset_cache(self) -> bool:
        """Forget the store's contents; jobs that are open end as usual (SCH-22)."""
        if not self.transport.clear():
            return False
        self._epoch += 1
        return True

    def shutdown(self) -> None:
        """Give back what the store keeps for jobs that nobody will report any more."""
        for opened in self._open.values():
            opened.failed = True
            self._settle(opened)
        self._open.clear()
        self._outbox.clear()
        self._lives.clear()
        self.transport.shutdown()


def _tables_of(remote: dict[str, Any]) -> Tables:
    """Blocks of every group in the params of a request."""
    return remote["remote_block_ids"], *remote.get("remote_other_block_ids", ())


def source_of(remote: dict[str, Any], block_ids: Sequence[int]) -> Source:
    """Where the params of a request lead."""
    return Source(
        remote["remote_engine_id"],
        remote["remote_offer_id"],
        tuple(block_ids),
        remote.get("remote_address"),
        remote.get("remote_instance", ""),
    )
