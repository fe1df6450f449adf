"""How known connectors are deployed on real engines, as data; and any other one."""

from __future__ import annotations

import dataclasses
from types import MappingProxyType

from kvconform.scenario.deployment import DECODE, ENGINES, PREFILL, Deployment, Topology
from kvconform.scenario.errors import UsageError
from kvconform.scenario.target import Target

_V1 = "vllm.distributed.kv_transfer.kv_connector.v1"
_DIALECT = MappingProxyType(
    {
        "prefill": {
            "do_remote_decode": True,
            "do_remote_prefill": False,
            "remote_engine_id": None,
            "remote_block_ids": None,
            "remote_host": None,
            "remote_port": None,
        },
        "decode": {},
    }
)
"""NIXL's, and the reference connector's: what the prefill's output says leads to its KV."""

ASCEND = Deployment(
    "ascend",
    "kvconform.connectors.ascend.connector:AscendConnector",
    extra={"token": "{token}", "offer_seconds": 5, "lease_seconds": 5, "transfer_seconds": 10},
    extra_of={
        PREFILL: {"offer_address": "tcp://127.0.0.1:{port:prefill}"},
        "store": {
            "address": "tcp://127.0.0.1:{port:store}",
            "store": "{run}",
            "answer_ms": 200,  # the engines of a run share few cores
            "offers": False,
        },
    },
    dialect=_DIALECT,
    service=(
        "-m", "kvconform.connectors.ascend.server", "tcp://127.0.0.1:{port:store}",
        "--store", "{run}", "--verify", "--lease-seconds", "5",
    ),
    service_env={"ASCEND_STORE_TOKEN": "{token}"},
    lease=8.0,
)  # fmt: skip

_MOONCAKE_LIBRARIES = MappingProxyType(
    {"libibverbs.so.1": "libibverbs1", "librdmacm.so.1": "librdmacm1"}
)

DEPLOYMENTS: tuple[Deployment, ...] = (
    ASCEND,
    dataclasses.replace(
        ASCEND,
        name="ascend-mooncake",
        topologies=("pd",),
        extra={**ASCEND.extra, "mooncake": "tcp", "allow_remote": True},
        modules=("mooncake",),
        libraries=_MOONCAKE_LIBRARIES,
    ),
    Deployment(
        "example",
        f"{_V1}.example_connector:ExampleConnector",
        topologies=("store",),
        extra={"shared_storage_path": "{run_dir}"},
        lease=5.0,
    ),
    Deployment(
        "nixl",
        f"{_V1}.nixl:NixlConnector",
        topologies=("pd",),
        extra={"kv_lease_duration": 15},
        config={"kv_buffer_device": "cpu"},
        env={
            "UCX_NET_DEVICES": "lo",
            "UCX_TLS": "tcp,self",
            "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
            "VLLM_NIXL_SIDE_CHANNEL_PORT": "{port}",
        },
        dialect=_DIALECT,
        modules=("nixl", "nixl_cu12"),
        lease=20.0,
    ),
    Deployment(
        "mooncake",
        f"{_V1}.mooncake.mooncake_connector:MooncakeConnector",
        topologies=("pd",),
        roles={PREFILL: "kv_producer", DECODE: "kv_consumer"},
        extra={"mooncake_protocol": "tcp"},
        env={
            "VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT": "10",
            "VLLM_MOONCAKE_BOOTSTRAP_PORT": "{port}",
        },
        dialect={
            "prefill": {
                "do_remote_decode": True, "do_remote_prefill": False, "transfer_id": "{transfer}",
            },
            "decode": {
                "do_remote_decode": False,
                "do_remote_prefill": True,
                "remote_bootstrap_addr": "http://127.0.0.1:{port:prefill}",
                "remote_engine_id": "{id:prefill}",
                "transfer_id": "{transfer}",
            },
        },
        prepare="kvconform.connectors.targets.on_cpu:accelerator",
        modules=("mooncake", "uvicorn"),
        libraries=_MOONCAKE_LIBRARIES,
        lease=15.0,
        patience=120.0,
    ),
)  # fmt: skip


def names() -> str:
    """Those that are known, for messages."""
    return ", ".join(deployment.name for deployment in DEPLOYMENTS)


def known(name: str) -> Deployment | None:
    """The known deployment of that name."""
    return next((d for d in DEPLOYMENTS if d.name == name), None)


def of(target: Target) -> Deployment:
    """The deployment of a target that is not a known one.

    Members of the zoo are deployed as the connector is that they are made from. Others tell: with
    a dialect prefill and decode may be apart, and NIXL's is taken where nothing is said.

    Raises:
        UsageError: there is no such deployment.
    """
    if target.name.startswith("zoo:"):
        if target.scheduler or target.children:
            raise UsageError(
                f"{target.name} is no connector of its own: 'e2e' plays those of the zoo that are."
            )
        return dataclasses.replace(ASCEND, name=target.name, cls=target.cls)
    return Deployment(
        target.name,
        target.cls,
        roles=dict.fromkeys(ENGINES, target.role),
        extra=target.extra,
        dialect=target.dialect or _DIALECT,
        prepare=target.prepare,
    )


def in_topology(deployment: Deployment, topology: str | None) -> tuple[Topology, ...]:
    """The topologies to be tried.

    Raises:
        UsageError: the connector is not for the one that was asked for.
    """
    found = tuple(t for t in deployment.topologies if topology in (None, t))
    if not found:
        raise UsageError(
            f"{deployment.name} is for topology {' and '.join(deployment.topologies)}, "
            f"not {topology}."
        )
    return found
