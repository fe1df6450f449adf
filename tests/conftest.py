"""All tests: vLLM is imported once, and kept out of the garbage collector's way."""

from __future__ import annotations

import pytest

from kvconform.engine.installed import require_vllm
from kvconform.faults.devices import cann

if cann.missing() is None:
    cann.load()  # vLLM finds torch_npu, and imports it, which without CANN fails


@pytest.fixture(scope="session", autouse=True)
def vllm() -> None:
    """The collector would walk vLLM's million objects again and again: half of the time."""
    require_vllm()
