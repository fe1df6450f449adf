"""What both halves count, for vLLM's log and metrics.

vLLM asks each half for what was counted since it last asked, adds up what all of them answer, and
passes the numbers on as plain data to the process that logs them. There they become statistics
again (``build_kv_connector_stats``), and are added up until the next line of the log.

The counters, each named after what was done (``load``, ``save``, ``pull``, ``offer``):

=====================  ============================================================================
``load_transfers``     transfers that have ended, of each rank
``load_blocks``        blocks that they moved, each rank's shard counted as one
``load_bytes``         bytes that they moved; of an offer none, its reader counts them
``load_failed_blocks`` blocks that they were to move and did not
``hits``               admissions for which blocks are loaded or pulled
``hit_blocks``         blocks that were planned for them
=====================  ============================================================================
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TypeVar

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorStats


@dataclass
class TransferStats(KVConnectorStats):
    """Counters by name; those that are 0 are left out."""

    data: dict[str, int] = field(default_factory=dict)

    def reset(self) -> None:
        """Start anew."""
        self.data = {}

    def aggregate(self, other: KVConnectorStats) -> TransferStats:
        """Both as a new one: neither's numbers are touched."""
        assert isinstance(other, TransferStats)
        total = Counter(self.data)
        total.update(other.data)
        return TransferStats(dict(total))

    def reduce(self) -> dict[str, int | float]:
        """The counters themselves."""
        return dict(self.data)

    def is_empty(self) -> bool:
        """Nothing was counted."""
        return not self.data


Stats = TypeVar("Stats", bound=TransferStats)


class Tally:
    """What one half has counted since it was last asked."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def add(self, **counts: int) -> None:
        """Count these."""
        self._counts.update(counts)

    def take(self, kind: type[Stats]) -> Stats | None:
        """The counts as statistics of this kind, each exactly once; None: there are none."""
        counts, self._counts = +self._counts, Counter()
        return kind(dict(counts)) if counts else None
