"""What the engine core does to its scheduler and its connector beside stepping them."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine.core import EngineCore

from kvconform.engine.compat.fit import fitting

_HOLDERS = (  # scheduler state that has to be empty when nothing is going on
    "running", "waiting", "skipped_waiting", "kv_holding_waiting", "deferred_waiting",
    "finished_recving_kv_req_ids", "failed_recving_kv_req_ids", "deferred_frees",
    "deferred_loads", "_inflight_prefills",
)  # fmt: skip

ABORTS_WITHIN_STEPS = hasattr(EngineCore, "_process_aborts_queue")
"""Whether an abort that comes during a step acts before the step's output is processed.

Until 0.11 it acts after that.
"""

_TAKES_IDS_IN_USE = "duplicate request id" not in inspect.getsource(Scheduler.add_request)


def takes_ids_in_use(scheduler: Any) -> bool:
    """Whether a request is let in although the scheduler still knows one of its id.

    Since 0.17 vLLM's asserts, and the front end makes ids unique, so that no client gets there; a
    scheduler of another make may say ``takes_ids_in_use`` of itself.
    """
    return bool(getattr(scheduler, "takes_ids_in_use", _TAKES_IDS_IN_USE))


def reset_choices(running: bool, connector: bool) -> dict[str, bool]:
    """Of the wishes for a reset of the prefix cache, those that this vLLM has (none until 0.11)."""
    return fitting(
        Scheduler.reset_prefix_cache,
        reset_running_requests=running,
        reset_connector=connector,
    )


def handshake(connector: Any) -> Any:
    """What a worker half tells all other processes once, or None."""
    ask = getattr(connector, "get_handshake_metadata", None)
    return ask() if ask is not None else None


def shake_hands(connector: Any, said: Mapping[tuple[int, int], Any]) -> None:
    """Give a scheduler half what the worker halves said, by pipeline stage and rank in it."""
    if hasattr(connector, "set_xfer_handshake_metadata_pp_aware"):
        connector.set_xfer_handshake_metadata_pp_aware(dict(said))
    else:  # until 0.20
        connector.set_xfer_handshake_metadata({rank: data for (_, rank), data in said.items()})


def holders(scheduler: Any) -> Iterator[tuple[str, list[Any]]]:
    """The scheduler's collections that are not empty, by name."""
    for name in _HOLDERS:
        held = getattr(scheduler, name, None)
        if held:
            yield name, list(held)
