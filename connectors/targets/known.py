"""Known targets, as data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from kvconform.connectors.zoo.catalogue import MUTANTS
from kvconform.connectors.zoo.mutant import Mutant
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
        "verify": True,
        "staging_blocks": 2,
    }
)


_MULTI = "vllm.distributed.kv_transfer.kv_connector.v1.multi_connector:MultiConnector"
_EXAMPLE = "vllm.distributed.kv_transfer.kv_connector.v1.example_connector:ExampleConnector"
_ASCEND = "kvconform.connectors.ascend.connector:AscendConnector"


def _stores(classes: Sequence[str]) -> Mapping[str, Any]:
    """A composition of stores that know nothing of each other; the last one hands over as well."""
    children = []
    for index, cls in enumerate(classes):
        module, _, name = cls.partition(":")
        last = index == len(classes) - 1
        children.append(
            {
                "kv_connector": name,
                "kv_connector_module_path": module,
                "kv_role": "{role}",
                "kv_connector_extra_config": {
                    **_STORE, "store": f"{{run}} {index}", "offers": last,
                },
            }
        )  # fmt: skip
    return MappingProxyType({"connectors": tuple(children)})


def _zoo(mutant: Mutant) -> Target:
    wrong = f"kvconform.connectors.zoo.{mutant.cls}"
    connector, scheduler = (_ASCEND, wrong) if mutant.is_scheduler else (wrong, "")
    children = [
        _ASCEND if child == "right" else f"kvconform.connectors.zoo.{child}"
        for child in mutant.children
    ]
    return Target(
        f"zoo:{mutant.name}",
        connector,
        scheduler=scheduler,
        extra=_stores(children) if children else MappingProxyType({**_STORE, **mutant.extra}),
        world="transport",
        device=mutant.device,
        caches="pairs" if mutant.device == "ascend-sim" else "whole",
        title=mutant.says,
        shape={"window": 0, **mutant.shape},
        dialect=_DIALECT,
        features=("pp", "carry", "verifies") + (("keeps",) if mutant.keeps else ()),
        since="0.18.0",
        until="0.33.0",
    )


_HOSTILE = (
    Mutant("exits-in-hook", "hostile:ExitsInHook", "Hostile: ends its process in a hook."),
    Mutant("crashes-in-hook", "hostile:CrashesInHook", "Hostile: segmentation fault in a hook."),
    Mutant("eats-memory-in-hook", "hostile:EatsMemoryInHook", "Hostile: takes all memory."),
    Mutant("hangs-in-hook", "hostile:HangsInHook", "Hostile: waits for ever in a hook."),
)
"""They are there to show that they harm nobody but themselves."""

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
_CHILD_EXAMPLE = MappingProxyType(
    {
        "kv_connector": "ExampleConnector",
        "kv_connector_module_path": _EXAMPLE.partition(":")[0],
        "kv_role": "{role}",
        "kv_connector_extra_config": {"shared_storage_path": "{run_dir}"},
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
        since="0.18.0",
        until="0.23.0",
        install="./kvc --vllm 0.18.0 --with vllm-ascend==0.18.0",
    )


KNOWN: tuple[Target, ...] = (
    Target(
        "ascend",
        _ASCEND,
        extra=_STORE,
        world="transport",
        title="the reference connector: a store in host memory, and prefill and decode apart",
        dialect=_DIALECT,
        features=("pp", "carry", "keeps", "verifies"),
        since="0.18.0",
        until="0.33.0",
    ),
    Target(
        "example",
        _EXAMPLE,
        extra=MappingProxyType({"shared_storage_path": "{run_dir}"}),
        title="vLLM's own example: saves prompts to files",
    ),
    Target(
        "multi",
        _MULTI,
        extra=_stores((_ASCEND, _ASCEND)),
        world="transport",
        title="vLLM's MultiConnector over the reference connector twice: a store, and one that "
        "hands over too",
        dialect=_DIALECT,
        features=("pp", "carry", "keeps"),
        since="0.18.0",
        until="0.33.0",
    ),
    Target(
        "multi-example",
        _MULTI,
        extra=MappingProxyType(
            {"connectors": (_CHILD_STORE, _CHILD_EXAMPLE)},
        ),
        world="transport",
        title="vLLM's MultiConnector: the reference connector's store, then vLLM's own example",
        shape=MappingProxyType({"topology": "store"}),
    ),
    _vllm_ascend(
        "vllm-ascend-mooncake",
        "vllm_ascend.distributed.kv_transfer.kv_p2p.mooncake_connector:MooncakeConnector",
        _MOONCAKE,
        "vllm-ascend's connector between prefill and decode, over a simulated Mooncake",
    ),
    _vllm_ascend(
        "vllm-ascend-multi",
        _MULTI,
        MappingProxyType({"connectors": (_CHILD_STORE, _CHILD_MOONCAKE)}),
        "vLLM's MultiConnector: the reference connector's store, then vllm-ascend-mooncake",
    ),
    *(_zoo(mutant) for mutant in (*MUTANTS, *_HOSTILE)),
)
