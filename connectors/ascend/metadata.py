"""What crosses between the scheduler half and the worker halves.

vLLM pickles it or passes the object itself, as the executor likes (SCH-14). So it is plain and
frozen, and built anew for each step: nothing that either side keeps is in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata

try:
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorWorkerMetadata
except ImportError:  # until 0.17, see ``carrier``
    KVConnectorWorkerMetadata = KVConnectorMetadata

Direction = Literal["load", "save", "pull", "offer", "release"]
"""What a job is about.

``load`` and ``save`` go from and to the store. The others pass KV from an engine that prefills to
one that decodes: the first *offers* blocks, the second *pulls* them, or *releases* them unread.
"""


@dataclass(frozen=True)
class Source:
    """Where offered blocks are.

    Attributes:
        engine_id: the engine that offers them.
        offer_id: the job with which it does.
        block_ids: blocks there, in the order of the job's own ``block_ids``.
        address: where the ranks of that engine answer, if they live in other processes.
        instance: tells that engine from one of the same name before it.
    """

    engine_id: str
    offer_id: str
    block_ids: tuple[int, ...] = ()
    address: str | None = None
    instance: str = ""


@dataclass(frozen=True)
class Job:
    """One transfer between store and device, to be done by every rank for its own shard.

    Attributes:
        job_id: unique among all jobs of all engines over one store. Not the request's id: a request
            may load more than once, and an id may come back after its end (SCH-08, SCH-27).
        request_id: for whom.
        direction: what it is about.
        keys: of loads and saves: names of the blocks in the store, in the order of ``block_ids``.
        block_ids: device blocks.
        wait: a load that has to be done before this step's forward (a synchronous one).
        source: of pulls and releases: whose blocks.
    """

    job_id: str
    request_id: str
    direction: Direction
    keys: tuple[bytes, ...]
    block_ids: tuple[int, ...]
    wait: bool
    source: Source | None = None


@dataclass(frozen=True)
class StepJobs(KVConnectorMetadata):
    """Scheduler to workers: the jobs that start in this step.

    Attributes:
        jobs: each job is handed out in exactly one step (SCH-12).
    """

    jobs: tuple[Job, ...] = ()


@dataclass(frozen=True)
class Closing:
    """What is known about the end of one job.

    Attributes:
        ranks: ranks that have let go of the job's blocks.
        failed: whether any of them could not transfer every block.
    """

    ranks: int
    failed: bool


@dataclass(frozen=True)
class WorkerReport(KVConnectorWorkerMetadata):
    """Workers to scheduler: the jobs that closed in this step.

    ``finished_sending`` and ``finished_recving`` are not enough: they know requests, not jobs; they
    say nothing of synchronous loads, nor of failed saves.

    Attributes:
        closings: by job id; never empty, vLLM is given None instead.
    """

    closings: Mapping[str, Closing]

    def aggregate(self, other: KVConnectorWorkerMetadata) -> WorkerReport:
        """Both ranks' reports as a new one; ranks are counted, so each must report a job once."""
        assert isinstance(other, WorkerReport)
        merged = dict(self.closings)
        for job_id, theirs in other.closings.items():
            mine = merged.get(job_id, Closing(0, False))
            merged[job_id] = Closing(mine.ranks + theirs.ranks, mine.failed or theirs.failed)
        return WorkerReport(merged)
