"""What the connector is configured with, read and checked once.

The keys of ``kv_connector_extra_config``:

==================  =======  =====================================================================
key                 default  meaning
==================  =======  =====================================================================
``store``           engine   name of the store; engines of one process that name the same share it
``capacity_blocks`` 1024     KV blocks that the store holds
``async_min_blocks`` 2       loads of at least so many blocks run while the request waits; shorter
                             ones are done before the forward
``transport``       none     ``package.module:factory``, see ``transport.make_transport``
==================  =======  =====================================================================

``async_min_blocks = 1`` puts every load in the background. Prefer it where loads may fail: vLLM (up
to 0.33 at least) recovers from a failed background load, but after a failed one before the forward
it may serve KV that was never loaded (if the request is aborted then), and under async scheduling
it miscounts the request's tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vllm.v1.kv_cache_interface import FullAttentionSpec

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig


@dataclass(frozen=True)
class Settings:
    """One engine's settings; equal in its scheduler and in all its workers.

    Attributes:
        engine_id: names the engine in the store. Engines over one store need different ones;
            vLLM's default is a fresh UUID.
        block_size: tokens per KV block, and per block hash.
        num_blocks: KV blocks of the device, or None when vLLM does not say.
        world_size: tensor-parallel ranks, each of which holds a shard of every block.
        may_load: whether the engine's role consumes KV.
        may_save: whether it produces KV.
        async_min_blocks: see the module.
        store: see the module.
        capacity_blocks: see the module.
        transport: see the module.
    """

    engine_id: str
    block_size: int
    num_blocks: int | None
    world_size: int
    may_load: bool
    may_save: bool
    async_min_blocks: int
    store: str
    capacity_blocks: int
    transport: str | None

    @classmethod
    def read(cls, vllm_config: VllmConfig, kv_cache_config: KVCacheConfig | None) -> Settings:
        """The settings of an engine.

        Raises:
            ValueError: the engine is set up in a way that this connector does not serve.
        """
        transfer = vllm_config.kv_transfer_config
        if transfer is None:
            raise ValueError("AscendConnector needs a kv_transfer_config")
        _check_served(vllm_config, kv_cache_config)
        extra = transfer.kv_connector_extra_config
        engine_id = str(transfer.engine_id)
        transport = extra.get("transport")
        return cls(
            engine_id=engine_id,
            block_size=vllm_config.cache_config.block_size,
            num_blocks=kv_cache_config.num_blocks if kv_cache_config is not None else None,
            world_size=vllm_config.parallel_config.tensor_parallel_size,
            may_load=transfer.is_kv_consumer,
            may_save=transfer.is_kv_producer,
            async_min_blocks=_count(extra, "async_min_blocks", 2),
            store=str(extra.get("store", f"engine {engine_id}")),
            capacity_blocks=_count(extra, "capacity_blocks", 1024),
            transport=str(transport) if transport is not None else None,
        )


def _count(extra: Mapping[str, Any], key: str, default: int) -> int:
    value = int(extra.get(key, default))
    if value < 1:
        raise ValueError(f"kv_connector_extra_config[{key!r}] must be at least 1, got {value}")
    return value


def _check_served(vllm_config: VllmConfig, kv_cache_config: KVCacheConfig | None) -> None:
    """Refuse at start-up what would corrupt KV later."""
    parallel = vllm_config.parallel_config
    for name in (
        "pipeline_parallel_size",  # a stage holds its own layers only, under the same keys
        "prefill_context_parallel_size",  # a block then holds a rank's share of more tokens
        "decode_context_parallel_size",
    ):
        if getattr(parallel, name, 1) != 1:
            raise ValueError(f"AscendConnector does not serve {name}={getattr(parallel, name)}")
    cache = vllm_config.cache_config
    block_size = cache.block_size
    # Keys are block hashes, one for each block. Releases differ in where they say how many tokens
    # a hash covers, and older ones know no other number than the block size.
    for where, name in (
        (cache, "prefix_match_unit"),
        (cache, "hash_block_size"),
        (kv_cache_config, "hash_block_size"),
    ):
        tokens = getattr(where, name, None)
        if tokens not in (None, block_size):
            raise ValueError(
                f"AscendConnector needs one block hash per block of {block_size} tokens, "
                f"but {name} is {tokens}"
            )
    if kv_cache_config is None:
        return
    groups = kv_cache_config.kv_cache_groups
    if len(groups) != 1:
        raise ValueError(f"AscendConnector serves one KV cache group, not {len(groups)}")
    spec = groups[0].kv_cache_spec
    # A group of layers that differ in size only; the name is absent from other groups.
    specs = list(getattr(spec, "kv_cache_specs", {}).values()) or [spec]
    for one in specs:
        # A sliding window gives blocks back while the request runs; a null block stands for them.
        if not isinstance(one, FullAttentionSpec) or getattr(one, "rswa_window", None):
            raise ValueError(f"AscendConnector serves full attention, not {type(one).__name__}")
        if one.block_size != block_size:
            raise ValueError(
                f"AscendConnector needs one block size, but cache_config says {block_size} and "
                f"the KV cache group {one.block_size}"
            )
