"""A stand-in for ``torch_npu``, for connectors that import it and move no data with it.

Of the real module vllm-ascend's ``MooncakeConnector`` uses, where both engines have as many ranks:
the import itself, ``torch.npu.set_device`` and ``torch.npu.current_device``. That is all there is
here; anything else raises ``AttributeError``, which says nothing about the target. There is no NPU,
as ``torch.npu.is_available()`` says.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import torch


def install() -> None:
    """Put it into ``sys.modules``, unless the real one can be imported."""
    if "torch_npu" in sys.modules:
        return
    try:
        import torch_npu  # noqa: F401
    except ImportError:
        pass
    else:
        return
    npu = _module("torch_npu.npu")
    npu.set_device = _set_device
    npu.current_device = _current_device
    npu.is_available = _is_available
    _module("torch_npu").npu = npu
    if not hasattr(torch, "npu"):
        vars(torch)["npu"] = npu


def remove() -> None:
    """Take it out again."""
    for name in ("torch_npu", "torch_npu.npu"):
        if isinstance(sys.modules.get(name), _StandIn):
            del sys.modules[name]
    if isinstance(vars(torch).get("npu"), _StandIn):
        del vars(torch)["npu"]


class _StandIn(ModuleType):
    npu: Any
    set_device: Any
    current_device: Any
    is_available: Any


def _module(name: str) -> _StandIn:
    made = _StandIn(name, __doc__)
    made.__spec__ = ModuleSpec(name, None)  # others look for it to see what is installed
    sys.modules[name] = made
    return made


def _set_device(device: Any) -> None:
    """The device of this thread; here memory is the host's in any case."""


def _current_device() -> int:
    return 0


def _is_available() -> bool:
    return False
