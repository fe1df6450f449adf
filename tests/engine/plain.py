"""Connectors that do nothing, to test the engine by itself."""

from __future__ import annotations

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1 import base
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
)

from kvconform.scenario.target import Target

SupportsHMA: Any = getattr(base, "SupportsHMA", object)  # not in 0.11.0


class Nothing(KVConnectorBase_V1):
    """Finds nothing, saves nothing."""

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        pass

    def wait_for_layer_load(self, layer_name: str) -> None:
        pass

    def save_kv_layer(
        self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any
    ) -> None:
        pass

    def wait_for_save(self) -> None:
        pass

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int, bool]:
        return 0, False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        pass

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        return KVConnectorMetadata()


class NothingInGroups(Nothing, SupportsHMA):
    """The same, for several KV groups."""

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, None]:
        return False, None


class KeepsForEver(NothingInGroups):
    """Asks for every request's blocks to be kept, and never says that it is done."""

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, None]:
        return True, None


def target(cls: type) -> Target:
    """The target that is this class."""
    return Target(cls.__name__, f"{cls.__module__}:{cls.__qualname__}")
