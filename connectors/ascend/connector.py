"""The class that vLLM calls.

vLLM makes one object of it in the scheduler's process and one in each worker's, and calls the hooks
of the one role or of the other. So it is two things under one name; here it hands every call to the
half that it is.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
)
from vllm.distributed.parallel_state import (
    get_pp_group,
    get_tensor_model_parallel_rank,
    model_parallel_is_initialized,
)

from kvconform.connectors.ascend.carrier import AS_STATISTICS, STATISTICS, ReportAsStats
from kvconform.connectors.ascend.groups import NAMES_FAILED_REQUESTS, SupportsHMA
from kvconform.connectors.ascend.metadata import StepJobs, WorkerReport
from kvconform.connectors.ascend.npu import NpuDevice
from kvconform.connectors.ascend.rank import RankDevice
from kvconform.connectors.ascend.scheduler import SchedulerHalf
from kvconform.connectors.ascend.settings import Settings
from kvconform.connectors.ascend.statistics import TransferStats
from kvconform.connectors.ascend.transport import make_transport
from kvconform.connectors.ascend.worker import WorkerHalf

if TYPE_CHECKING:
    from collections.abc import Iterable

    from vllm.config import VllmConfig
    from vllm.distributed.kv_events import KVCacheEvent
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorTransferResults
    from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorStats
    from vllm.forward_context import ForwardContext
    from vllm.v1.attention.backend import AttentionMetadata
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request


class AscendConnector(KVConnectorBase_V1, SupportsHMA):
    """Keeps the KV of finished requests in host memory, and loads it for requests that share it.

    Loads are synchronous or in the background, by length; saves are in the background, when a
    request has finished. Where one engine prefills and another decodes, the second pulls the blocks
    that the first offers (``kv_transfer_params`` with ``do_remote_decode``, ``do_remote_prefill``).
    One KV cache group of full attention, and beside it others, with a sliding window or without;
    any number of ranks, the same on both sides.

    Args:
        vllm_config: see ``settings`` for the keys of its ``kv_connector_extra_config``.
        role: scheduler or worker.
        kv_cache_config: layout of the KV cache.

    Raises:
        ValueError: the engine is set up in a way that this connector does not serve.
    """

    scheduler_half_class: ClassVar[type[SchedulerHalf]] = SchedulerHalf
    worker_half_class: ClassVar[type[WorkerHalf]] = WorkerHalf
    npu_device_class: ClassVar[type[NpuDevice]] = NpuDevice

    def __init__(
        self,
        vllm_config: VllmConfig,
        role: KVConnectorRole,
        kv_cache_config: KVCacheConfig | None = None,
    ) -> None:
        if "kv_cache_config" in inspect.signature(super().__init__).parameters:
            super().__init__(vllm_config, role, kv_cache_config)
        else:  # 0.11.0
            super().__init__(vllm_config, role)
        settings = Settings.read(vllm_config, kv_cache_config)
        rank = 0
        if role == KVConnectorRole.WORKER and model_parallel_is_initialized():
            tp = vllm_config.parallel_config.tensor_parallel_size
            rank = get_pp_group().rank_in_group * tp + get_tensor_model_parallel_rank()
        transport = make_transport(settings, vllm_config, role, rank)
        self._scheduler: SchedulerHalf | None = None
        self._worker: WorkerHalf | None = None
        if role == KVConnectorRole.SCHEDULER:
            self._scheduler = self.scheduler_half_class(settings, transport)
        else:
            device = RankDevice(self.npu_device_class, settings.staging_blocks)
            self._worker = self.worker_half_class(settings, transport, device, rank)

    @property
    def scheduler(self) -> SchedulerHalf:
        """The half that this is in the scheduler's process."""
        assert self._scheduler is not None, "a scheduler's hook was called on a worker's connector"
        return self._scheduler

    @property
    def worker(self) -> WorkerHalf:
        """The half that this is in a worker's process."""
        assert self._worker is not None, "a worker's hook was called on a scheduler's connector"
        return self._worker

    def shutdown(self) -> None:
        for half in (self._scheduler, self._worker):
            if half is not None:
                half.shutdown()

    # -- scheduler --------------------------------------------------------------------------------

    @property
    def requires_kv_delivery(self) -> bool:
        """False: nobody waits for what this connector saves, a lost save is a later cache miss."""
        return False

    def get_num_new_matched_tokens(
        self, request: Request, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        return self.scheduler.get_num_new_matched_tokens(request, num_computed_tokens)

    def update_state_after_alloc(
        self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int
    ) -> None:
        self.scheduler.update_state_after_alloc(request, blocks, num_external_tokens)

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> StepJobs:
        return self.scheduler.build_connector_meta(scheduler_output)

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        self.scheduler.update_connector_output(connector_output)

    def request_finished(
        self, request: Request, block_ids: list[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        return self.scheduler.request_finished(request, block_ids)

    def request_finished_all_groups(
        self, request: Request, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        """vLLM calls it in place of ``request_finished``, for one group too."""
        self.scheduler.end_of_other_groups(request, block_ids)
        return self.request_finished(request, block_ids[0])

    def reset_cache(self) -> bool:
        return self.scheduler.reset_cache()

    def take_events(self) -> Iterable[KVCacheEvent]:
        return self.scheduler.take_events()

    # -- worker -----------------------------------------------------------------------------------

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        # vllm-ascend registers a pair of tensors for each layer, whatever the annotation says.
        self.worker.register_kv_caches(dict(kv_caches))

    def handle_preemptions(self, kv_connector_metadata: KVConnectorMetadata) -> None:
        # Until 0.18 the argument is the set of preempted request ids.
        self.worker.handle_preemptions(kv_connector_metadata)

    def bind_connector_metadata(self, connector_metadata: KVConnectorMetadata) -> None:
        super().bind_connector_metadata(connector_metadata)
        assert isinstance(connector_metadata, StepJobs)
        self.worker.begin_step(connector_metadata)

    def start_load_kv(self, forward_context: ForwardContext, **kwargs: Any) -> None:
        self.worker.start_load_kv()

    def wait_for_layer_load(self, layer_name: str) -> None:
        self.worker.wait_for_layer_load(layer_name)

    def save_kv_layer(
        self,
        layer_name: str,
        kv_layer: torch.Tensor,
        attn_metadata: AttentionMetadata,
        **kwargs: Any,
    ) -> None:
        self.worker.save_kv_layer(layer_name, kv_layer)

    def wait_for_save(self) -> None:
        self.worker.wait_for_save()

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        return self.worker.get_finished(finished_req_ids)

    def get_block_ids_with_load_errors(self) -> set[int]:
        return self.worker.get_block_ids_with_load_errors()

    def build_connector_worker_meta(self) -> WorkerReport | None:
        return self.worker.build_connector_worker_meta()

    if NAMES_FAILED_REQUESTS:

        def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
            results = super().get_transfer_results(finished_req_ids)
            results.failed_recving |= self.worker.take_failed_requests()
            return results

    # -- both -------------------------------------------------------------------------------------

    def get_kv_connector_stats(self) -> KVConnectorStats | None:
        half = self._scheduler or self._worker
        assert half is not None
        counted = half.tally.take(STATISTICS)
        if AS_STATISTICS and self._worker is not None:
            report = self._worker.build_connector_worker_meta()
            return _with_report(counted, report)
        return counted

    @classmethod
    def build_kv_connector_stats(
        cls, data: dict[str, Any] | None = None
    ) -> KVConnectorStats | None:
        return TransferStats(dict(data or {}))


def _with_report(
    counted: TransferStats | None, report: WorkerReport | None
) -> KVConnectorStats | None:
    if report is None:
        return counted
    return ReportAsStats(counted.data if counted is not None else {}, report)
