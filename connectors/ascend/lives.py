"""What the scheduler half remembers: of each request, and of each job that is open."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vllm.v1.request import RequestStatus

from kvconform.connectors.ascend.metadata import Job

Tables = Sequence[Sequence[int]]
"""Block ids, per KV cache group."""

FINISHED_ON_ITS_OWN = frozenset(
    status
    for status in RequestStatus
    # By name: not every release has every status.
    if status.name in ("FINISHED_STOPPED", "FINISHED_LENGTH_CAPPED", "FINISHED_REPETITION")
)


@dataclass(eq=False)
class Life:
    """What is remembered of one request, from its first lookup to its end.

    Attributes:
        local_blocks: blocks that vLLM found in its own cache, at the last lookup.
        in_background: how the last lookup promised to load.
        epoch: resets of the store before the last lookup. A request holds no KV when it is looked
            up, so all that it holds later was computed or loaded in that epoch or after.
        load_failed: a load of this request failed.
        pulls: the last lookup promised what another engine offers.
        remote_is_done: what another engine offers has been pulled or released.
        tables: blocks of every KV cache group, at its end; empty: not told.
    """

    local_blocks: int = 0
    in_background: bool = False
    epoch: int = 0
    load_failed: bool = False
    pulls: bool = False
    remote_is_done: bool = False
    tables: Tables = ()


@dataclass(eq=False)
class OpenJob:
    """A job that some rank has not closed.

    Attributes:
        job: what was planned.
        life: the request that it is for; the record itself, for its id may belong to another
            request by the time that the job closes.
        ranks_left: ranks that have not reported.
        failed: whether a rank reported a failure.
    """

    job: Job
    life: Life
    ranks_left: int
    failed: bool = False
