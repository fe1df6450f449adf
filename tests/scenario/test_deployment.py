"""How deployments tell engines what is theirs."""

from __future__ import annotations

import pytest

from kvconform.connectors.targets.deployments import DEPLOYMENTS, in_topology, known, names, of
from kvconform.connectors.targets.resolve import resolve
from kvconform.scenario.deployment import ENGINES, Deployment, filled
from kvconform.scenario.errors import UsageError

VALUES = {
    **{f"port:{name}": 7000 + i for i, name in enumerate((*ENGINES, "store"))},
    **{f"id:{name}": f"{name}-1" for name in ENGINES},
    "run_dir": "/somewhere",
    "run": "one",
    "token": "secret",
    "tp": 1,
    "store_blocks": 8,
}


def test_a_placeholder_that_is_a_whole_string_keeps_its_type() -> None:
    told = {"n": 3, "port:store": 7}
    data = {"a": "{n}", "b": "x{n}", "c": ["{port:store}", "tcp://h:{port:store}"], "d": "{other}"}
    assert filled(data, told) == {"a": 3, "b": "x3", "c": [7, "tcp://h:7"], "d": "{other}"}


def test_an_engine_is_told_its_own_port_role_and_extra() -> None:
    deployment = Deployment(
        "x",
        "a.b:C",
        roles={"decode": "kv_consumer"},
        extra={"all": 1},
        extra_of={"pd": {"pd": 2}, "decode": {"port": "{port}"}, "store": {"no": 0}},
        config={"kv_buffer_device": "cpu"},
    )
    config = deployment.transfer_config("decode", "pd", "fail", VALUES)
    assert config == {
        "kv_connector": "C",
        "kv_connector_module_path": "a.b",
        "kv_role": "kv_consumer",
        "engine_id": "decode-1",
        "kv_load_failure_policy": "fail",
        "kv_buffer_device": "cpu",
        "kv_connector_extra_config": {"all": 1, "pd": 2, "port": 7001},
    }
    assert deployment.transfer_config("prefill", "pd", "fail", VALUES)["kv_role"] == "kv_both"


@pytest.mark.parametrize("deployment", DEPLOYMENTS, ids=lambda d: d.name)
def test_no_placeholder_of_a_known_deployment_is_left_open(deployment: Deployment) -> None:
    for topology in deployment.topologies:
        for engine in ENGINES:
            told = deployment.told(engine, {**VALUES, "transfer": "r1"})
            parts = [
                deployment.transfer_config(engine, topology, "fail", VALUES),
                filled([deployment.env, deployment.dialect, deployment.service], told),
            ]
            assert "{port" not in repr(parts)
            assert "{id" not in repr(parts)
            assert "{run" not in repr(parts)
            assert "{transfer" not in repr(parts)


def test_any_target_has_a_deployment() -> None:
    assert names() == "ascend, ascend-mooncake, example, nixl, mooncake"
    assert known("nixl") is not None
    assert known("zoo:wrong-block") is None
    wrong = of(resolve("zoo:wrong-block"))
    assert wrong.cls.startswith("kvconform.connectors.zoo.")
    assert wrong.service == DEPLOYMENTS[0].service
    bare = of(resolve("some.module:Connector"))
    assert (bare.cls, bare.topologies) == ("some.module:Connector", ("pd", "store"))
    with pytest.raises(UsageError, match="no connector of its own"):
        of(resolve("zoo:finishes-twice"))


def test_a_topology_has_to_be_one_of_the_target() -> None:
    nixl = known("nixl")
    assert nixl is not None
    assert in_topology(nixl, None) == ("pd",)
    with pytest.raises(UsageError, match="nixl is for topology pd, not store"):
        in_topology(nixl, "store")
