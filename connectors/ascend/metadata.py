"""What crosses between the scheduler half and the worker halves.

vLLM pickles it or passes the object itself, as the executor likes (SCH-14). So it is plain and
frozen, and built anew for each step: nothing that either side keeps is in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorMetadata,
    KVConnectorWorkerMetadata,
)

Direction = Literal["load", "save"]


@dataclass(frozen=True)
class Job:
    """One transfer between store and device, to be done by every rank for its own shard.

    Attributes:
        job_id: unique among all jobs of all engines over one store. Not the request's id: a request
            may load more than once, and an id may come back after its end (SCH-08, SCH-27).
        request_id: for whom.
        direction: ``load`` into the blocks, or ``save`` from them.
        keys: names of the blocks in the store, in the order of ``block_ids``.
        block_ids: device blocks.
        wait: a load that has to be done before this step's forward (a synchronous one).
    """

    job_id: str
    request_id: str
    direction: Direction
    keys: tuple[bytes, ...]
    block_ids: tuple[int, ...]
    wait: bool


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
