"""How the workers' reports reach the scheduler half.

vLLM passes on what ``build_connector_worker_meta`` answers, since 0.18. Before that, statistics are
all that goes from the workers to the scheduler half and is not about requests: the report goes as
such, with no numbers in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorStats

from kvconform.connectors.ascend.metadata import WorkerReport

if TYPE_CHECKING:
    from vllm.v1.outputs import KVConnectorOutput

AS_STATISTICS = not hasattr(KVConnectorBase_V1, "build_connector_worker_meta")
"""Whether this vLLM passes on no metadata of the workers."""


@dataclass
class ReportAsStats(KVConnectorStats):
    """A report among statistics; ``data``, which vLLM logs, stays empty."""

    report: WorkerReport | None = None

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        """Both ranks' reports in a new one."""
        assert isinstance(other, ReportAsStats)
        assert self.report is not None
        assert other.report is not None
        return ReportAsStats(report=self.report.aggregate(other.report))

    def is_empty(self) -> bool:
        """There are no numbers in it."""
        return True


def delivered(output: KVConnectorOutput) -> WorkerReport | None:
    """The report that has come with a step's output, if one has."""
    stats = output.kv_connector_stats
    if isinstance(stats, ReportAsStats):
        return stats.report
    report = getattr(output, "kv_connector_worker_meta", None)
    return report if isinstance(report, WorkerReport) else None
