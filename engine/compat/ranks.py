"""What a process holds once: its transfer agent, the current config, its parallel groups."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from typing import Any

from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed import parallel_state
from vllm.distributed.kv_transfer import kv_transfer_state

from kvconform.scenario.shape import Shape

_GROUPS = ("_WORLD", "_TP", "_PP", "_DP", "_DCP", "_PCP", "_EP")


class SimulatedGroup:
    """A process group of ranks that live in one process: knows who is who, communicates nothing.

    A connector that asks for a collective gets an AttributeError that names it: the harness
    simulates no collectives, and a hook that needs one cannot be judged here.
    """

    def __init__(self, rank: int, ranks: Sequence[int]) -> None:
        self.rank = rank
        self.local_rank = rank
        self.ranks = list(ranks)
        self.rank_in_group = self.ranks.index(rank)
        self.world_size = len(self.ranks)

    @property
    def first_rank(self) -> int:
        """Global rank of the first member."""
        return self.ranks[0]

    @property
    def last_rank(self) -> int:
        """Global rank of the last member."""
        return self.ranks[-1]

    @property
    def is_first_rank(self) -> bool:
        """Whether this rank is the first."""
        return self.rank == self.first_rank

    @property
    def is_last_rank(self) -> bool:
        """Whether this rank is the last."""
        return self.rank == self.last_rank


@functools.lru_cache(maxsize=64)
def _groups(rank: int, tp: int, pp: int) -> dict[str, SimulatedGroup]:
    alone = SimulatedGroup(rank, [rank])
    stage = rank // tp
    return {
        **dict.fromkeys(_GROUPS, alone),
        "_WORLD": SimulatedGroup(rank, range(tp * pp)),
        "_TP": SimulatedGroup(rank, range(stage * tp, stage * tp + tp)),
        "_PP": SimulatedGroup(rank, range(rank % tp, tp * pp, tp)),
    }


@contextlib.contextmanager
def rank_scope(
    config: VllmConfig, rank: int | None, shape: Shape, connector: Any
) -> Iterator[None]:
    """Install what a process holds once: transfer agent, current config, parallel groups.

    Args:
        config: the config of this engine and rank.
        rank: the worker's rank, or None for the scheduler's process, which has no groups.
        shape: how many ranks there are; rank = stage * tp + rank in the stage.
        connector: the worker half that is this process' transfer agent, or None.
    """
    saved = {name: getattr(parallel_state, name, None) for name in _GROUPS}
    agent = kv_transfer_state._KV_CONNECTOR_AGENT
    if rank is not None:
        for name, group in _groups(rank, shape.tp, shape.pp).items():
            if hasattr(parallel_state, name):
                setattr(parallel_state, name, group)
    kv_transfer_state._KV_CONNECTOR_AGENT = connector
    try:
        with set_current_vllm_config(config):
            yield
    finally:
        kv_transfer_state._KV_CONNECTOR_AGENT = agent
        for name, before in saved.items():
            if hasattr(parallel_state, name):
                setattr(parallel_state, name, before)
