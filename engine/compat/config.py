"""vLLM's config of one process of one engine."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vllm.config import (
    CacheConfig,
    DeviceConfig,
    KVTransferConfig,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
    SpeculativeConfig,
    VllmConfig,
)
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

from kvconform.engine.compat.fit import fitting
from kvconform.engine.compat.layout import model_dir
from kvconform.engine.compat.observation import publish_events
from kvconform.scenario.shape import Shape
from kvconform.scenario.target import Target


@dataclass(frozen=True, slots=True)
class Life:
    """One of the lives of an engine that dies and starts anew.

    Attributes:
        number: lives before it.
        model: the model that it serves; empty: the one that engines begin with.
    """

    number: int = 0
    model: str = ""

    def name(self, engine: int) -> str:
        """Its engine's id: a new one each time, as vLLM makes them."""
        return f"e{engine}l{self.number}" if self.number else f"e{engine}"


@functools.lru_cache(maxsize=256)
def _config(
    cls: str, role: str, engine: int, rank: int | None, shape: Shape, hybrid: bool, life: Life
) -> VllmConfig:
    name, path = found_by(*cls.split(":"))
    parallel = ParallelConfig()
    # Set afterwards: the constructor would look for as many devices as there are ranks.
    parallel.tensor_parallel_size = shape.tp
    parallel.pipeline_parallel_size = shape.pp
    parallel.world_size = shape.ranks
    parallel.rank = rank or 0
    folder = model_dir(life.model)
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
                kv_connector=name,
                kv_connector_module_path=path,
                kv_role=role,
                engine_id=life.name(engine),
                kv_load_failure_policy=shape.load_failure_policy,
            )
        ),
        parallel_config=parallel,
        device_config=DeviceConfig("cpu"),
    )
    publish_events(config)
    # __post_init__ may turn async scheduling on by itself.
    config.scheduler_config.async_scheduling = shape.async_scheduling
    config.cache_config.num_gpu_blocks = shape.num_blocks
    if shape.drafts:
        config.speculative_config = _drafter(config, shape)
    return config


def _drafter(config: VllmConfig, shape: Shape) -> SpeculativeConfig:
    """A drafter: the model itself, or the prompt's own n-grams."""
    assert config.model_config is not None
    which: dict[str, Any] = {"method": "draft_model", "model": config.model_config.model}
    if not shape.lookahead:
        which = {"method": "ngram", "prompt_lookup_min": 1, "prompt_lookup_max": 2}
    return SpeculativeConfig(
        num_speculative_tokens=shape.drafts,
        target_model_config=config.model_config,
        target_parallel_config=config.parallel_config,
        **which,
    )


def found_by(module: str, class_name: str) -> tuple[str, str | None]:
    """The ``kv_connector`` and the module path by which vLLM finds this class, and no other.

    Until 0.18 it looks among its own connectors first, and into the module only then.
    """
    registry = KVConnectorFactory._registry
    if class_name not in registry or module.partition(".")[0] == "vllm":
        return class_name, module
    name = f"{module}:{class_name}"
    if name not in registry:
        KVConnectorFactory.register_connector(name, module, class_name)
    return name, None


def build_config(
    target: Target,
    engine: int,
    rank: int | None,
    shape: Shape,
    extra: Mapping[str, Any],
    life: Life = Life(),
) -> VllmConfig:
    """The config of one process of one engine: of a rank, or (None) of the scheduler.

    Built once per shape and life; ``extra`` is set for this run.
    """
    role = target.role
    if shape.topology == "pd" and role == "kv_both":
        role = "kv_consumer" if engine else "kv_producer"
    config = _config(target.cls, role, engine, rank, shape, bool(shape.window), life)
    assert config.kv_transfer_config is not None
    config.kv_transfer_config.kv_connector_extra_config = _with_role(extra, role)
    return config


def _with_role(value: Any, role: str) -> Any:
    """``value`` with this role for ``{role}``, which children of a MultiConnector are told."""
    if isinstance(value, Mapping):
        return {key: _with_role(inner, role) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_with_role(inner, role) for inner in value]
    return role if value == "{role}" else value


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
