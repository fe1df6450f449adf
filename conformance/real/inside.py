"""What is asked of an engine core in its own process, through vLLM's door for worker extensions.

vLLM gives the worker's class this base (``worker_extension_cls``), and ``collective_rpc`` calls its
methods. With the ``uni`` executor the worker lives in the process of the engine core, beside the
scheduler; so the scheduler that is asked is the one that serves the requests.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

PREPARE = "KVC_E2E_PREPARE"
"""Environment variable: ``package.module:function``, see :class:`Deployment`."""


def prepare() -> None:
    """Call what the deployment wants called before its connector's class is imported."""
    module, _, name = os.environ.get(PREPARE, "").partition(":")
    if module:
        getattr(importlib.import_module(module), name)()


prepare()  # vLLM imports this module before it makes the worker's connector and the scheduler's


class Inside:
    """Methods of the worker that are ours."""

    def kvc_books(self) -> dict[str, int]:
        """Blocks and requests of the scheduler.

        Returns:
            ``blocks`` (that requests may have: all but the null block), ``free`` of them, and the
            requests that are ``unfinished``.
        """
        scheduler = _scheduler()
        pool = scheduler.kv_cache_manager.block_pool
        return {
            "blocks": pool.num_gpu_blocks - 1,
            "free": pool.get_num_free_blocks(),
            "unfinished": scheduler.get_num_unfinished_requests(),
        }


def _scheduler() -> Any:
    """The scheduler of the engine core that asks: it is among those who called this function."""
    from vllm.v1.engine.core import EngineCore

    frame = sys._getframe()
    while not isinstance(frame.f_locals.get("self"), EngineCore):
        assert frame.f_back is not None, "asked by no engine core of this process"
        frame = frame.f_back
    return frame.f_locals["self"].scheduler
