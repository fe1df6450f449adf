"""The installed vLLM's API behind one small interface; the only place that may look at a version.

Releases differ in signatures more than in meaning, so it goes by feature: keyword arguments are
filtered through the signature of what is called, and a method or field that is absent is not asked
for. Version numbers stand in comments only: they say until or since which of the releases tried
(0.11.0 to 0.33.0) something is so.
"""

from kvconform.engine.compat import prepare  # noqa: F401 - before anything else of vLLM

# isort: split

from kvconform.engine.compat.attention import attention_metadata
from kvconform.engine.compat.build import (
    Parts,
    build_request,
    build_scheduler,
    build_worker_connector,
    children,
    connector_class,
    connector_classes,
    finished_status,
    named,
    register_children,
    scheduler_class,
    serves_groups,
)
from kvconform.engine.compat.can import supports, vllm_version
from kvconform.engine.compat.config import (
    Life,
    build_config,
    concurrent_batches,
    config_state,
    forget_configs,
    found_by,
)
from kvconform.engine.compat.control import (
    ABORTS_WITHIN_STEPS,
    handshake,
    holders,
    reset_choices,
    shake_hands,
    takes_ids_in_use,
)
from kvconform.engine.compat.hashes import tells_apart
from kvconform.engine.compat.layout import build_kv_cache_config, layer_names
from kvconform.engine.compat.observation import (
    HANDED,
    FrontEnd,
    is_event,
    names_of,
    received_event,
    removed,
    stored,
    tells_events,
)
from kvconform.engine.compat.outputs import (
    NAMES_FAILED_REQUESTS,
    REPORTS_FAILED_LOADS,
    Report,
    aggregated,
    awaited,
    draft_token_ids,
    no_forward_output,
    report_of,
    reported,
    runner_output,
    world_output,
)
from kvconform.engine.compat.ranks import rank_scope
from kvconform.engine.compat.step import (
    calls_layer_hooks,
    connector_step,
    handle_preemptions,
    register_kv_caches,
)
from kvconform.engine.compat.wire import (
    all_tokens,
    common_prefix_blocks,
    new_tokens,
    output_counts,
    preempted,
    prompt_length,
    resumed,
)

__all__ = [
    "ABORTS_WITHIN_STEPS",
    "HANDED",
    "NAMES_FAILED_REQUESTS",
    "REPORTS_FAILED_LOADS",
    "FrontEnd",
    "Life",
    "Parts",
    "Report",
    "aggregated",
    "all_tokens",
    "attention_metadata",
    "awaited",
    "build_config",
    "build_kv_cache_config",
    "build_request",
    "build_scheduler",
    "build_worker_connector",
    "calls_layer_hooks",
    "children",
    "common_prefix_blocks",
    "concurrent_batches",
    "config_state",
    "connector_class",
    "connector_classes",
    "connector_step",
    "draft_token_ids",
    "finished_status",
    "forget_configs",
    "found_by",
    "handle_preemptions",
    "handshake",
    "holders",
    "is_event",
    "layer_names",
    "named",
    "names_of",
    "new_tokens",
    "no_forward_output",
    "output_counts",
    "preempted",
    "prompt_length",
    "rank_scope",
    "received_event",
    "register_children",
    "register_kv_caches",
    "removed",
    "report_of",
    "reported",
    "reset_choices",
    "resumed",
    "runner_output",
    "scheduler_class",
    "serves_groups",
    "shake_hands",
    "stored",
    "supports",
    "takes_ids_in_use",
    "tells_apart",
    "tells_events",
    "vllm_version",
    "world_output",
]
