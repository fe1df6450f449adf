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
``offer_seconds``   60       how long an engine that prefills keeps a request's blocks for the one
                             that decodes
``address``         none     the store is in another process, at this ZeroMQ address; see below
==================  =======  =====================================================================

``async_min_blocks = 1`` puts every load in the background. Prefer it where loads may fail: vLLM (up
to 0.33 at least) recovers from a failed background load, but after a failed one before the forward
it may serve KV that was never loaded (if the request is aborted then), and under async scheduling
it miscounts the request's tokens.

With an ``address`` (``tcp://127.0.0.1:7777``, ``ipc:///run/kv-store``) scheduler and workers reach
the store through ZeroMQ, see ``remote``; several ranks need that. Engines over one store name the
same ``store``, and must be of one model. Then these keys count too:

=====================  ========  ==================================================================
key                    default   meaning
=====================  ========  ==================================================================
``token``              (needed)  secret that the store and all its clients share
``serve``              false     the engine's scheduler serves the store itself, unless another has
                                 begun to; else it is ``python -m …ascend.server``
``allow_remote``       false     the server may bind to an address that other machines can reach
``answer_ms``          5         the scheduler waits at most so long for an answer of the store
``transfer_seconds``   30        a transfer has ended after so long, failed if need be
``lease_seconds``      10        a client that the store has not heard for so long has died, and
                                 what it holds is given back; likewise the store, for a client
``max_message_bytes``  64 MiB    larger messages are refused; a block's shard has to fit in one
=====================  ========  ==================================================================
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vllm.v1.kv_cache_interface import FullAttentionSpec

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig


@dataclass(frozen=True)
class RemoteStore:
    """Where a store in another process is, and what is expected of it; see the module.

    Attributes:
        address: of the store, as ZeroMQ writes it.
        token: see the module. Not shown when this is printed.
        serve: see the module.
        allow_remote: see the module.
        answer_seconds: ``answer_ms``.
        transfer_seconds: see the module.
        lease_seconds: see the module.
        max_message_bytes: see the module.
    """

    address: str
    token: str = field(repr=False)
    serve: bool = False
    allow_remote: bool = False
    answer_seconds: float = 0.005
    transfer_seconds: float = 30.0
    lease_seconds: float = 10.0
    max_message_bytes: int = 64 << 20

    @classmethod
    def read(cls, extra: Mapping[str, Any]) -> RemoteStore | None:
        """The remote store that a ``kv_connector_extra_config`` names, if it names one.

        Raises:
            ValueError: something is missing, or has no meaning.
        """
        if extra.get("address") is None:
            return None
        if not extra.get("token"):
            raise ValueError("kv_connector_extra_config['address'] needs a 'token'")
        if extra.get("transport") is not None:
            raise ValueError("kv_connector_extra_config: 'address' and 'transport' exclude another")
        return cls(
            address=str(extra["address"]),
            token=str(extra["token"]),
            serve=_flag(extra, "serve"),
            allow_remote=_flag(extra, "allow_remote"),
            answer_seconds=_positive(extra, "answer_ms", 5.0) / 1000,
            transfer_seconds=_positive(extra, "transfer_seconds", cls.transfer_seconds),
            lease_seconds=_positive(extra, "lease_seconds", cls.lease_seconds),
            max_message_bytes=_count(extra, "max_message_bytes", cls.max_message_bytes),
        )


@dataclass(frozen=True)
class Settings:
    """One engine's settings; equal in its scheduler and in all its workers.

    Attributes:
        engine_id: names the engine in the store. Engines over one store need different ones;
            vLLM's default is a fresh UUID.
        block_size: tokens per KV block, and per block hash.
        num_blocks: KV blocks of the device, or None when vLLM does not say.
        world_size: ranks of all pipeline stages, each of which holds a shard of every block.
        may_load: whether the engine's role consumes KV.
        may_save: whether it produces KV.
        async_min_blocks: see the module.
        store: see the module.
        capacity_blocks: see the module.
        transport: see the module.
        offer_seconds: see the module.
        remote: the store is in another process; None: in this one.
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
    offer_seconds: float = 60.0
    remote: RemoteStore | None = None

    @classmethod
    def read(cls, vllm_config: VllmConfig, kv_cache_config: KVCacheConfig | None) -> Settings:
        """The settings of an engine.

        Raises:
            ValueError: the engine is set up in a way that this connector does not serve.
        """
        transfer, parallel = vllm_config.kv_transfer_config, vllm_config.parallel_config
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
            world_size=parallel.tensor_parallel_size * parallel.pipeline_parallel_size,
            may_load=transfer.is_kv_consumer,
            may_save=transfer.is_kv_producer,
            async_min_blocks=_count(extra, "async_min_blocks", 2),
            store=str(extra.get("store", f"engine {engine_id}")),
            capacity_blocks=_count(extra, "capacity_blocks", 1024),
            transport=str(transport) if transport is not None else None,
            offer_seconds=_positive(extra, "offer_seconds", cls.offer_seconds),
            remote=RemoteStore.read(extra),
        )


def _count(extra: Mapping[str, Any], key: str, default: int) -> int:
    value = int(extra.get(key, default))
    if value < 1:
        raise ValueError(f"kv_connector_extra_config[{key!r}] must be at least 1, got {value}")
    return value


def _positive(extra: Mapping[str, Any], key: str, default: float) -> float:
    value = float(extra.get(key, default))
    if not 0 < value < math.inf:
        raise ValueError(f"kv_connector_extra_config[{key!r}] must be positive, got {value}")
    return value


def _flag(extra: Mapping[str, Any], key: str) -> bool:
    value = extra.get(key, False)
    if not isinstance(value, bool):  # "false" is true
        raise ValueError(f"kv_connector_extra_config[{key!r}] must be true or false, got {value!r}")
    return value


def _check_served(vllm_config: VllmConfig, kv_cache_config: KVCacheConfig | None) -> None:
    """Refuse at start-up what would corrupt KV later."""
    parallel = vllm_config.parallel_config
    for name in (
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
