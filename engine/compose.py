"""The target as one child of vLLM's MultiConnector, beside a companion that is right."""

from __future__ import annotations

import dataclasses
from typing import Any

from kvconform.engine import compat
from kvconform.scenario.errors import UsageError
from kvconform.scenario.shape import Shape
from kvconform.scenario.target import Target

MULTI = "vllm.distributed.kv_transfer.kv_connector.v1.multi_connector:MultiConnector"

COMPANION = "kvconform.connectors.ascend.connector:AscendConnector"
"""The reference connector as a store of its own, by name: nothing here knows it."""


def composed(target: Target, shape: Shape) -> Target:
    """What the engines of this shape run: the target, or vLLM's MultiConnector with it inside.

    Raises:
        UsageError: it is a composition already.
    """
    if shape.beside == "none":
        return target
    if target.children:
        raise UsageError(
            f"The target {target.name!r} is a composition itself: it cannot be put beside another."
        )
    children = [_child(target.cls, dict(target.extra)), _companion(target)]
    if shape.beside == "after":
        children.reverse()
    return dataclasses.replace(target, cls=MULTI, extra={"connectors": children})


def place_of(shape: Shape) -> int | None:
    """Which child the target is; None where it is alone."""
    return {"none": None, "before": 0, "after": 1}[shape.beside]


def _companion(target: Target) -> dict[str, Any]:
    """It keeps its KV where the target cannot find it, and leaves handing over to the target."""
    extra: dict[str, Any] = {
        "store": "{run} beside", "capacity_blocks": "{store_blocks}", "offers": False,
        "verify": True,  # memory that fails does so for both
    }  # fmt: skip
    if target.world == "transport":
        extra["transport"] = "kvconform.faults.transport:connect"
    return _child(COMPANION, extra)


def _child(cls: str, extra: dict[str, Any]) -> dict[str, Any]:
    name, path = compat.found_by(*cls.split(":"))
    return {
        "kv_connector": name,
        **({"kv_connector_module_path": path} if path else {}),
        "kv_role": "{role}",
        "kv_connector_extra_config": extra,
    }
