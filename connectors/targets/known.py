"""Known targets, as data."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from kvconform.scenario.target import Target

_DIALECT = MappingProxyType(
    {"prefill": {"do_remote_decode": True, "do_remote_prefill": False}, "decode": {}}
)
"""NIXL's, and the reference connector's: what the prefill's output says leads to its KV."""

_STORE = MappingProxyType(
    {
        "transport": "kvconform.faults.transport:connect",
        "store": "{run}",
        "capacity_blocks": "{store_blocks}",
    }
)


def _zoo(name: str, cls: str, title: str, module: str | None = None) -> Target:
    module = module or name.replace("-", "_")
    return Target(
        f"zoo:{name}",
        f"kvconform.connectors.zoo.{module}:{cls}",
        extra=_STORE,
        world="transport",
        title=title,
        dialect=_DIALECT,
        features=("pp",),
    )


_MOONCAKE = MappingProxyType(
    {
        "prefill": {"tp_size": "{tp}", "dp_size": 1},
        "decode": {"tp_size": "{tp}", "dp_size": 1},
    }
)
"""Both engines of a run have as many ranks."""

_CHILD_STORE = MappingProxyType(
    {
        "kv_connector": "AscendConnector",
        "kv_connector_module_path": "kvconform.connectors.ascend.connector",
        "kv_role": "{role}",
        "kv_connector_extra_config": {**_STORE, "offers": False},
    }
)
_CHILD_MOONCAKE = MappingProxyType(
    {
        "kv_connector": "MooncakeConnectorV1",
        "kv_role": "{role}",
        "kv_connector_extra_config": _MOONCAKE,
    }
)
"""By the name under which vllm-ascend registers it."""


def _vllm_ascend(name: str, cls: str, extra: Mapping[str, Any], title: str) -> Target:
    return Target(
        name,
        cls,
        extra=extra,
        world="mooncake",
        title=title,
        dialect=_DIALECT,
        shape=MappingProxyType({"topology": "pd"}),
        caches="pairs",
        prepare="kvconform.faults.mooncake:prepare",
        install="./kvc --vllm 0.18.0 --with vllm-ascend==0.18.0",
    )


KNOWN: tuple[Target, ...] = (
    Target(
        "ascend",
        "kvconform.connectors.ascend.connector:AscendConnector",
        extra=_STORE,
        world="transport",
        title="the reference connector: a store in host memory, and prefill and decode apart",
        dialect=_DIALECT,
        features=("pp",),
    ),
    Target(
        "example",
        "vllm.distributed.kv_transfer.kv_connector.v1.example_connector:ExampleConnector",
        extra=MappingProxyType({"shared_storage_path": "{run_dir}"}),
        title="vLLM's own example: saves prompts to files",
    ),
    _vllm_ascend(
        "vllm-ascend-mooncake",
        "vllm_ascend.distributed.kv_transfer.kv_p2p.mooncake_connector:MooncakeConnector",
        _MOONCAKE,
        "vllm-ascend's connector between prefill and decode, over a simulated Mooncake",
    ),
    _vllm_ascend(
        "vllm-ascend-multi",
        "vllm.distributed.kv_transfer.kv_connector.v1.multi_connector:MultiConnector",
        MappingProxyType({"connectors": (_CHILD_STORE, _CHILD_MOONCAKE)}),
        "vLLM's MultiConnector: the reference connector's store, then vllm-ascend-mooncake",
    ),
    _zoo("full-hit-report", "FullHitReport", "reports a full local hit as received (KVC-302)"),
    _zoo("leak-on-abort", "LeakOnAbort", "forgets the loads of aborted requests (KVC-304)"),
    _zoo("wrong-block", "WrongBlock", "loads other blocks beside a local hit (KVC-501)"),
    _zoo("late-failure", "LateFailure", "reports failed blocks a step too late (KVC-601)"),
    _zoo("double-completion", "DoubleCompletion", "reports every transfer twice (KVC-303)"),
    _zoo("lease-ignored", "LeaseIgnored", "keeps blocks for ever when nobody comes (KVC-603)"),
    _zoo("exits-in-hook", "ExitsInHook", "hostile: ends its process in a hook", "hostile"),
    _zoo("crashes-in-hook", "CrashesInHook", "hostile: segmentation fault in a hook", "hostile"),
    _zoo(
        "eats-memory-in-hook", "EatsMemoryInHook", "hostile: takes all memory in a hook", "hostile"
    ),
    _zoo("hangs-in-hook", "HangsInHook", "hostile: waits for ever in a hook", "hostile"),
)
