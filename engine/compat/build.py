"""Building vLLM's own objects: configs, schedulers, requests, connectors."""

from __future__ import annotations

import functools
import hashlib
import importlib
import inspect
import itertools
import json
import tempfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from vllm.config import (
    CacheConfig,
    DeviceConfig,
    KVTransferConfig,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
    VllmConfig,
)
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole
from vllm.lora.request import LoRARequest
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core import kv_cache_utils
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from kvconform.scenario.identity import Identity
from kvconform.scenario.shape import Shape
from kvconform.scenario.target import Target

HEADS = 2
"""KV heads of the simulated model, over all ranks."""

HEAD_SIZE = 4
"""Elements (float32) of K, and of V, per head and token."""

LAYERS_PER_GROUP = 2

_QUERY_HEADS = 4
"""As many as there may be tensor-parallel ranks."""

_MODEL = {  # a tiny OPT: its weights and tokenizer are never read
    "architectures": ["OPTForCausalLM"],
    "model_type": "opt",
    "hidden_size": _QUERY_HEADS * HEAD_SIZE,
    "ffn_dim": 32,
    "num_hidden_layers": LAYERS_PER_GROUP,
    "num_attention_heads": _QUERY_HEADS,
    "num_key_value_heads": HEADS,
    "vocab_size": 512,
    "max_position_embeddings": 2048,
    "word_embed_proj_dim": _QUERY_HEADS * HEAD_SIZE,
    "do_layer_norm_before": True,
    "activation_function": "relu",
    "torch_dtype": "float32",
    "bos_token_id": 2,
    "eos_token_id": 2,
    "pad_token_id": 1,
}

_arrivals = itertools.count()
init_none_hash(sha256)


@dataclass(frozen=True)
class Parts:
    """What one engine is built of."""

    scheduler: Any
    config: VllmConfig
    hash_block_size: int
    """Tokens per block hash."""


def vllm_version() -> str:
    """The installed vLLM's version."""
    import vllm

    return str(vllm.__version__)


@functools.cache
def _parameters(function: Any) -> frozenset[str]:
    return frozenset(inspect.signature(function).parameters)


def fitting(function: Any, **kwargs: Any) -> dict[str, Any]:
    """The keyword arguments that ``function`` of the installed vLLM takes."""
    parameters = _parameters(function)
    return {k: v for k, v in kwargs.items() if k in parameters}


def connector_class(target: Target) -> type:
    """Import the target's class (ImportError and AttributeError pass through)."""
    return getattr(importlib.import_module(target.module), target.class_name)


def supports_groups(cls: type) -> bool:
    """Whether a connector class takes block ids of several KV groups."""
    from vllm.distributed.kv_transfer.kv_connector.v1 import base

    marker = getattr(base, "SupportsHMA", None)
    return marker is not None and issubclass(cls, marker)


@functools.cache
def _model_dir() -> str:
    text = json.dumps(_MODEL)
    # Named by what it holds: another kvconform on this machine may want another model.
    name = hashlib.sha256(text.encode()).hexdigest()[:8]
    folder = Path(tempfile.gettempdir()) / f"kvconform-model-{name}"
    folder.mkdir(exist_ok=True)
    path = folder / "config.json"
    if not path.exists():
        scratch = folder / f"config-{next(_arrivals)}-{id(path)}.json"
        scratch.write_text(text)
        scratch.replace(path)
    return str(folder)


@functools.lru_cache(maxsize=256)
def _config(
    cls: str, role: str, engine: int, rank: int | None, shape: Shape, hybrid: bool
) -> VllmConfig:
    module, _, class_name = cls.partition(":")
    parallel = ParallelConfig()
    # Set afterwards: the constructor would look for as many devices as there are ranks.
    parallel.tensor_parallel_size = shape.tp
    parallel.pipeline_parallel_size = shape.pp
    parallel.world_size = shape.ranks
    parallel.rank = rank or 0
    folder = _model_dir()
    config = VllmConfig(
        model_config=ModelConfig(
            **fitting(
                ModelConfig,
                model=folder,
                tokenizer=folder,
                skip_tokenizer_init=True,
                dtype="float32",
                seed=0,
                max_model_len=shape.max_model_len,
                enforce_eager=True,
            )
        ),
        scheduler_config=SchedulerConfig(
            **fitting(
                SchedulerConfig,
                max_num_seqs=shape.max_num_seqs,
                max_num_batched_tokens=shape.max_num_batched_tokens,
                max_model_len=shape.max_model_len,
                is_encoder_decoder=False,
                enable_chunked_prefill=True,
                async_scheduling=shape.async_scheduling,
                disable_hybrid_kv_cache_manager=not hybrid,
                policy=shape.policy,
                watermark=0.0,
            )
        ),
        cache_config=CacheConfig(
            **fitting(
                CacheConfig,
                block_size=shape.block_size,
                enable_prefix_caching=shape.prefix_caching,
                prefix_caching_hash_algo="sha256",
            )
        ),
        kv_transfer_config=KVTransferConfig(
            **fitting(
                KVTransferConfig,
                kv_connector=class_name,
                kv_connector_module_path=module,
                kv_role=role,
                engine_id=f"e{engine}",
                kv_load_failure_policy=shape.load_failure_policy,
            )
        ),
        parallel_config=parallel,
        device_config=DeviceConfig("cpu"),
    )
    # __post_init__ may turn async scheduling on by itself.
    config.scheduler_config.async_scheduling = shape.async_scheduling
    config.cache_config.num_gpu_blocks = shape.num_blocks
    return config


def build_config(
    target: Target, engine: int, rank: int | None, shape: Shape, extra: Mapping[str, Any]
) -> VllmConfig:
    """The config of one process of one engine: of a rank, or (None) of the scheduler.

    Built once per shape; ``extra`` is set for this run.
    """
    role = target.role
    if shape.topology == "pd" and role == "kv_both":
        role = "kv_consumer" if engine else "kv_producer"
    config = _config(target.cls, role, engine, rank, shape, bool(shape.window))
    assert config.kv_transfer_config is not None
    config.kv_transfer_config.kv_connector_extra_config = dict(extra)
    return config


def config_state(config: VllmConfig) -> str:
    """What a target must leave alone in a config that later runs share, as text to compare."""
    transfer = config.kv_transfer_config
    assert transfer is not None
    parts = (
        config.cache_config.block_size,
        config.cache_config.num_gpu_blocks,
        config.cache_config.enable_prefix_caching,
        vars(config.scheduler_config),
        {k: v for k, v in vars(transfer).items() if k != "kv_connector_extra_config"},
        (config.parallel_config.world_size, config.parallel_config.rank),
    )
    return repr(parts)


def concurrent_batches(config: VllmConfig, shape: Shape) -> int:
    """Steps that may be under way at once."""
    default = 2 if shape.async_scheduling else shape.pp
    return int(getattr(config, "max_concurrent_batches", default))


def forget_configs() -> None:
    """Build configs anew from now on: a target changed one that is shared between runs."""
    _config.cache_clear()


def layer_names(shape: Shape, stage: int) -> tuple[tuple[str, ...], ...]:
    """Per KV group, the names of the layers that a pipeline stage holds."""
    count = LAYERS_PER_GROUP // shape.pp
    firsts = range(0, LAYERS_PER_GROUP * (2 if shape.window else 1), LAYERS_PER_GROUP)
    return tuple(
        tuple(f"model.layers.{first + stage * count + i}.self_attn.attn" for i in range(count))
        for first in firsts
    )


def build_kv_cache_config(shape: Shape, stage: int = 0) -> KVCacheConfig:
    """The layout of a pipeline stage's KV cache; the scheduler gets that of the first."""
    spec = {
        "block_size": shape.block_size,
        "num_kv_heads": max(1, HEADS // shape.tp),
        "head_size": HEAD_SIZE,
        "dtype": torch.float32,
    }
    layers = layer_names(shape, stage)
    groups = [KVCacheGroupSpec(list(layers[0]), FullAttentionSpec(**spec))]
    if shape.window:
        from vllm.v1.kv_cache_interface import SlidingWindowSpec

        groups.append(
            KVCacheGroupSpec(
                list(layers[1]), SlidingWindowSpec(**spec, sliding_window=shape.window)
            )
        )
    kv_cache_config = KVCacheConfig(
        num_blocks=shape.num_blocks, kv_cache_tensors=[], kv_cache_groups=groups
    )
    if hasattr(kv_cache_config, "kv_cache_layout"):
        kv_cache_config.kv_cache_layout = "LBHNC"
    return kv_cache_config


def build_scheduler(config: VllmConfig, shape: Shape) -> Parts:
    """A real scheduler, with the scheduler half that it makes for itself."""
    kv_cache_config = build_kv_cache_config(shape)
    config.cache_config.num_gpu_blocks = shape.num_blocks
    block_size = hash_block_size = shape.block_size
    resolve = getattr(kv_cache_utils, "resolve_kv_cache_block_sizes", None)
    if resolve is not None:
        block_size, hash_block_size = resolve(kv_cache_config, config)
        _hash_blocks(kv_cache_config, hash_block_size)
    cls = AsyncScheduler if shape.async_scheduling else Scheduler
    scheduler = cls(
        **fitting(
            Scheduler,
            vllm_config=config,
            kv_cache_config=kv_cache_config,
            structured_output_manager=StructuredOutputManager(config),
            block_size=block_size,
            hash_block_size=hash_block_size,
            log_stats=True,
        )
    )
    if shape.runner == "v2":
        # The output's shape is the scheduler's to choose; the runner itself would need Triton.
        scheduler.use_v2_model_runner = True
    return Parts(scheduler, config, hash_block_size)


def _hash_blocks(kv_cache_config: KVCacheConfig, tokens: int) -> None:
    kv_cache_config.hash_block_size = tokens
    kv_cache_config.cache_hit_alignment_tokens = tokens


def build_worker_connector(config: VllmConfig, parts: Parts, shape: Shape, stage: int) -> Any:
    """A worker half of a pipeline stage, made as the model runner makes it."""
    kv_cache_config = build_kv_cache_config(shape, stage)
    if hasattr(kv_cache_config, "hash_block_size"):
        _hash_blocks(kv_cache_config, parts.hash_block_size)
    return KVConnectorFactory.create_connector(
        **fitting(
            KVConnectorFactory.create_connector,
            config=config,
            role=KVConnectorRole.WORKER,
            kv_cache_config=kv_cache_config,
        )
    )


@functools.lru_cache(maxsize=16)
def _hasher(block_size: int) -> Any:
    return get_request_block_hasher(block_size, sha256)


@functools.lru_cache(maxsize=256)
def _adapter(name: str | None) -> LoRARequest | None:
    if name is None:
        return None
    return LoRARequest(name, 1 + zlib.crc32(name.encode()) % 10_000, "never-read")


def build_request(
    request_id: str,
    prompt: tuple[int, ...],
    max_tokens: int,
    identity: Identity,
    block_size: int,
    *,
    priority: int = 0,
    params: Mapping[str, Any] | None = None,
) -> Request:
    """A request as the front end would make it: greedy, no stop token.

    ``params`` are its ``kv_transfer_params``.
    """
    sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True, temperature=0.0)
    if params is not None:
        sampling.extra_args = {"kv_transfer_params": dict(params)}
    return Request(
        **fitting(
            Request,
            request_id=request_id,
            prompt_token_ids=list(prompt),
            sampling_params=sampling,
            priority=priority,
            pooling_params=None,
            eos_token_id=None,
            arrival_time=float(next(_arrivals)),  # any increasing number: order decides, not time
            cache_salt=identity.salt,
            lora_request=_adapter(identity.adapter),
            block_hasher=_hasher(block_size),
        )
    )


def finished_status(name: str) -> RequestStatus:
    """A finish status by name, for ``finish_requests``."""
    return RequestStatus[name]
