"""What the installed vLLM can do at all."""

from __future__ import annotations

import functools
from typing import Any

from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.v1 import base
from vllm.v1.worker.kv_connector_model_runner_mixin import KVConnectorModelRunnerMixin

from kvconform.engine.compat.fit import parameters


def vllm_version() -> str:
    """The installed vLLM's version."""
    import vllm

    return str(vllm.__version__)


def supports_groups(cls: type) -> bool:
    """Whether a connector class takes block ids of several KV groups."""
    marker = getattr(base, "SupportsHMA", None)
    return marker is not None and issubclass(cls, marker)


@functools.cache
def supports(field: str, value: Any) -> bool:
    """Whether this vLLM can be run with this value of a field of the shape."""
    match field, value:
        case "runner", "v2":
            return _has_second_runner()
        case "load_failure_policy", "fail":
            return "kv_load_failure_policy" in parameters(KVTransferConfig)
        case "drafts", count if count:
            # Older runners end a step's connector part elsewhere.
            return hasattr(KVConnectorModelRunnerMixin, "finalize_kv_connector")
        case "window", width if width:
            return hasattr(base, "SupportsHMA")
    return True


def _has_second_runner() -> bool:
    """Whether the second runner's side of a connector has the hooks that are driven here."""
    try:
        from vllm.v1.worker.gpu.kv_connector import ActiveKVConnector
    except ImportError:
        return False
    return hasattr(ActiveKVConnector, "finish_forward")
