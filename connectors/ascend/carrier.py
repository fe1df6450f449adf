"""How the workers' reports reach the scheduler half.

vLLM passes on what ``build_connector_worker_meta`` answers, since 0.18. Before that, statistics are
all that goes from the workers to the scheduler half and is not about requests: the report goes as
such, beside whatever was counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorStats

from kvconform.connectors.ascend.metadata import WorkerReport
from kvconform.connectors.ascend.statistics import TransferStats

if TYPE_CHECKING:
    from vllm.v1.outputs import KVConnectorOutput

AS_STATISTICS = not hasattr(KVConnectorBase_V1, "build_connector_worker_meta")
"""Whether this vLLM passes on no metadata of the workers."""


@dataclass
class ReportAsStats(TransferStats):
    """Statistics with a report beside them, which vLLM does not log."""

    report: WorkerReport | None = None

    def aggregate(self, other: KVConnectorStats) -> ReportAsStats:
        """Both ranks' numbers and reports in a new one."""
        assert isinstance(other, ReportAsStats)
        report, theirs = self.report, other.report
        if report is not None and theirs is not None:
            report = report.aggregate(theirs)
        return ReportAsStats(super().aggregate(other).data, report or theirs)

    def is_empty(self) -> bool:
        """There is neither a number nor a report in it."""
        return super().is_empty() and self.report is None


STATISTICS: type[TransferStats] = ReportAsStats if AS_STATISTICS else TransferStats
"""Of which kind the statistics of both halves are: vLLM adds them up."""


def delivered(output: KVConnectorOutput) -> WorkerReport | None:
    """The report that has come with a step's output, if one has."""
    stats = output.kv_connector_stats
    if isinstance(stats, ReportAsStats):
        return stats.report
    report = getattr(output, "kv_connector_worker_meta", None)
    return report if isinstance(report, WorkerReport) else None
