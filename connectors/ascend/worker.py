"""The worker half: one per rank. Carries jobs out, and reports each exactly once.

Within a step vLLM calls, in this order (the forward may be missing, and until 0.27 so is
``wait_for_save`` then; with speculative decoding it comes last)::

    begin_step, start_load_kv, <forward>, wait_for_save, get_finished,
    get_block_ids_with_load_errors, <statistics>, build_connector_worker_meta

From 0.32 on ``start_load_kv`` comes after the forward when the step has no load to wait for.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch

from kvconform.connectors.ascend.device import Device
from kvconform.connectors.ascend.groups import NAMES_FAILED_REQUESTS
from kvconform.connectors.ascend.metadata import Closing, Direction, Job, StepJobs, WorkerReport
from kvconform.connectors.ascend.planes import KVCache
from kvconform.connectors.ascend.settings import Settings
from kvconform.connectors.ascend.statistics import Tally
from kvconform.connectors.ascend.transport import Outcome, Transfer, Transport


class WorkerHalf:
    """Moves this rank's shards.

    Args:
        settings: the engine's.
        transport: the store, as seen from this rank.
        device: this rank's KV memory.
        rank: tensor-parallel rank.
    """

    def __init__(self, settings: Settings, transport: Transport, device: Device, rank: int) -> None:
        self.settings = settings
        self.transport = transport
        self.device = device
        self.rank = rank
        self._to_start: list[Job] = []  # of this step, not submitted yet
        self._load_errors: set[int] = set()  # device blocks, not reported yet
        self._failed_requests: set[str] = set()  # the same, where requests are named
        self._closings: dict[str, Closing] = {}  # by job id, not reported yet
        self._sends: Counter[str] = Counter()  # open saves and offers, by request
        self._sizes: dict[str, int] = {}  # blocks, by job id, of what has not ended
        self.tally = Tally()

    def register_kv_caches(self, kv_caches: dict[str, KVCache]) -> None:
        """Once, before the first step."""
        self.device.register_kv_caches(kv_caches, self.settings.num_blocks)
        self.transport.register(self.device)

    @property
    def lease_seconds(self) -> float:
        """How long an offer is kept for its reader."""
        return self.settings.offer_seconds

    # -- a step, in order -------------------------------------------------------------------------

    def begin_step(self, step: StepJobs) -> None:
        """This step's jobs."""
        self._to_start = list(step.jobs)

    def start_load_kv(self) -> None:
        """Start this step's loads, and wait for those that its forward reads (WRK-13).

        All are started before any is waited for.
        """
        for job in self._start("load", "pull", "release"):
            if job.wait:
                # Not to be named in finished_recving: its request has been running since this
                # step was scheduled (WRK-01).
                self._close(self.transport.wait(job.job_id))

    def wait_for_layer_load(self, layer_name: str) -> None:
        """All layers are there since ``start_load_kv``."""

    def save_kv_layer(self, layer_name: str, kv_layer: torch.Tensor) -> None:
        """Whole requests are saved, when they have finished: no layer is saved on its own."""

    def wait_for_save(self) -> None:
        """Start this step's saves, behind the forward, whose way they would only be in.

        Waits for none: vLLM keeps their blocks until ``finished_sending`` (WRK-14).
        """
        self._start("save", "offer")

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        """Requests whose save, and whose background load, has ended on this rank since last asked.

        ``finished_req_ids`` says nothing about transfers: an aborted load is named there while it
        is under way (WRK-04). A request is reported whether its transfer failed or not (WRK-08),
        and once, for vLLM counts reports, not ranks (WRK-05). One that is both saved and offered
        has been sent when both have ended.
        """
        self._start("save", "offer")  # where wait_for_save comes later in the step, or not at all
        sending: set[str] = set()
        recving: set[str] = set()
        for outcome in self.transport.poll():
            self._close(outcome)
            if outcome.direction in ("load", "pull"):
                recving.add(outcome.request_id)
                continue
            self._sends[outcome.request_id] -= 1
            if not self._sends[outcome.request_id]:
                del self._sends[outcome.request_id]
                sending.add(outcome.request_id)
        return sending or None, recving or None

    def get_block_ids_with_load_errors(self) -> set[int]:
        """Blocks that the loads closed in this step could not fill (WRK-07, WRK-10)."""
        errors, self._load_errors = self._load_errors, set()
        return errors

    def take_failed_requests(self) -> set[str]:
        """Requests received in this step whose load could not fill all blocks (WRK-11)."""
        failed, self._failed_requests = self._failed_requests, set()
        return failed

    def build_connector_worker_meta(self) -> WorkerReport | None:
        """The jobs closed in this step, for the scheduler half; None if there are none."""
        closings, self._closings = self._closings, {}
        return WorkerReport(closings) if closings else None

    # -- any time ---------------------------------------------------------------------------------

    def handle_preemptions(self, metadata_or_request_ids: Any) -> None:
        """Nothing to do: no open transfer touches the blocks of a preempted request (WRK-15).

        Only running requests are preempted. A load that is waited for is over before its request's
        first forward; a background load belongs to a request that is not running yet; a save to one
        that has finished.
        """

    def shutdown(self) -> None:
        """Calling it again does nothing."""
        self._to_start.clear()
        self.transport.shutdown()

    # -- jobs -------------------------------------------------------------------------------------

    def _start(self, *directions: Direction) -> list[Job]:
        """Submit those of this step's jobs that have not been; which they were."""
        jobs = [job for job in self._to_start if job.direction in directions]
        self._to_start = [job for job in self._to_start if job.direction not in directions]
        # Not later: what this step goes on to launch is none of their business.
        after = self.device.mark() if jobs else None
        for job in jobs:
            if job.direction == "release":
                assert job.source is not None
                self.transport.release(job.source)
                continue
            if job.direction in ("save", "offer"):
                self._sends[job.request_id] += 1
            self._sizes[job.job_id] = len(job.block_ids)
            self.transport.submit(
                Transfer(
                    id=job.job_id,
                    request_id=job.request_id,
                    direction=job.direction,
                    rank=self.rank,
                    keys=job.keys,
                    block_ids=job.block_ids,
                    device=self.device,
                    after=after,
                    source=job.source,
                    seconds=self.lease_seconds,
                )
            )
        return jobs

    def _close(self, outcome: Outcome) -> None:
        """This rank has let go of the job's blocks."""
        failed = bool(outcome.failed_block_ids)
        self._closings[outcome.transfer_id] = Closing(ranks=1, failed=failed)
        self._count(outcome)
        if not failed or outcome.direction not in ("load", "pull"):
            return
        if self.settings.groups.are_several and NAMES_FAILED_REQUESTS:
            self._failed_requests.add(outcome.request_id)
        else:  # of several groups an older vLLM dies of it: better than to compute with it
            self._load_errors.update(outcome.failed_block_ids)

    def _count(self, outcome: Outcome) -> None:
        name, lost = outcome.direction, len(outcome.failed_block_ids)
        moved = self._sizes.pop(outcome.transfer_id, lost) - lost
        self.tally.add(
            **{
                f"{name}_transfers": 1,
                f"{name}_blocks": moved,
                f"{name}_bytes": 0 if name == "offer" else moved * self.device.block_bytes,
                f"{name}_failed_blocks": lost,
            }
        )
