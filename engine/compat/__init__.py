"""The installed vLLM's API behind one small interface; the only place that may look at a version.

Eras differ in signatures, not in meaning, so most of it goes by feature: keyword arguments are
filtered through the signature of what is called.
"""

from kvconform.engine.compat.build import (
    Parts,
    build_config,
    build_kv_cache_config,
    build_request,
    build_scheduler,
    build_worker_connector,
    concurrent_batches,
    config_state,
    connector_class,
    finished_status,
    forget_configs,
    layer_names,
    supports_groups,
    vllm_version,
)
from kvconform.engine.compat.run import (
    attention_metadata,
    connector_step,
    handle_preemptions,
    no_forward_output,
    rank_scope,
    register_kv_caches,
    runner_output,
    world_output,
)

__all__ = [
    "Parts",
    "attention_metadata",
    "build_config",
    "build_kv_cache_config",
    "build_request",
    "build_scheduler",
    "build_worker_connector",
    "concurrent_batches",
    "config_state",
    "connector_class",
    "connector_step",
    "finished_status",
    "forget_configs",
    "handle_preemptions",
    "layer_names",
    "no_forward_output",
    "rank_scope",
    "register_kv_caches",
    "runner_output",
    "supports_groups",
    "vllm_version",
    "world_output",
]
