"""The second model runner's side of a connector. Only where ``can.supports("runner", "v2")``."""

from __future__ import annotations

from typing import Any

from vllm.v1.worker.gpu.kv_connector import ActiveKVConnector


class SecondRunner(ActiveKVConnector):
    """As installed, but for one hook.

    It calls ``handle_preemptions`` itself; here that is done already, for all ranks at once.
    """

    def pre_forward(
        self, scheduler_output: Any, input_batch: Any = None, attn_metadata: Any = None
    ) -> None:
        """What comes before the forward."""
        self.kv_connector.bind_connector_metadata(scheduler_output.kv_connector_metadata)
        self._pending_load_kwargs = self._build_load_kwargs(
            scheduler_output, input_batch, attn_metadata
        )
        if scheduler_output.has_sync_kv_loads:
            self._start_load_kv()
