"""Blocks that are kept for another engine have no lease: who never comes keeps them for ever.

From vLLM's NIXL connector before PR #20139 and vllm-ascend's Mooncake connector before #2174: the
release depends on the decode engine's word alone, so a router or a decode engine that dies takes
the prefill engine's blocks with it. Rule KVC-603.
"""

from __future__ import annotations

import math

from kvconform.connectors.ascend.connector import AscendConnector
from kvconform.connectors.ascend.worker import WorkerHalf


class _WorkerHalf(WorkerHalf):
    @property
    def lease_seconds(self) -> float:
        return math.inf  # the mistake


class LeaseIgnored(AscendConnector):
    """The reference connector, but for the mistake."""

    worker_half_class = _WorkerHalf
