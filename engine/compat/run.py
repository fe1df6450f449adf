"""Running the worker's side of a step: process-global state, the mixin, outputs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed import parallel_state
from vllm.distributed.kv_transfer import kv_transfer_state
from vllm.distributed.kv_transfer.kv_connector.utils import KVOutputAggregator
from vllm.forward_context import ForwardContext, override_forward_context
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.worker.kv_connector_model_runner_mixin import KVConnectorModelRunnerMixin

_GROUPS = ("_WORLD", "_TP", "_PP", "_DP", "_DCP", "_PCP", "_EP")


class SimulatedGroup:
    """A process group of ranks that live in one process: knows who is who, communicates nothing.

    A connector that asks for a collective gets an AttributeError that names it: the harness
    simulates no collectives, and a hook that needs one cannot be judged here.
    """

    def __init__(self, rank: int, world_size: int) -> None:
        self.rank = rank
        self.local_rank = rank
        self.rank_in_group = rank
        self.world_size = world_size
        self.ranks = list(range(world_size))

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


@contextlib.contextmanager
def rank_scope(
    config: VllmConfig, rank: int | None, world_size: int, connector: Any
) -> Iterator[None]:
    """Install what a process holds once: transfer agent, current config, parallel groups.

    Args:
        config: the config of this engine and rank.
        rank: the worker's rank, or None for the scheduler's process, which has no groups.
        world_size: tensor-parallel ranks.
        connector: the worker half that is this process' transfer agent, or None.
    """
    saved = {name: getattr(parallel_state, name, None) for name in _GROUPS}
    agent = kv_transfer_state._KV_CONNECTOR_AGENT
    if rank is not None:
        member = SimulatedGroup(rank, world_size)
        alone = SimulatedGroup(0, 1)
        for name in _GROUPS:
            if hasattr(parallel_state, name):
                setattr(parallel_state, name, member if name in ("_WORLD", "_TP") else alone)
    kv_transfer_state._KV_CONNECTOR_AGENT = connector
    try:
        with set_current_vllm_config(config):
            yield
    finally:
        kv_transfer_state._KV_CONNECTOR_AGENT = agent
        for name, group in saved.items():
            if hasattr(parallel_state, name):
                setattr(parallel_state, name, group)


@contextlib.contextmanager
def connector_step(
    scheduler_output: Any, layers: Mapping[str, Any], metadata: Mapping[str, Any] | None
) -> Iterator[Any]:
    """The installed mixin's life cycle of one step, in a forward context; yields its output."""
    context = ForwardContext(
        no_compile_layers=dict(layers),
        attn_metadata=dict(metadata) if metadata is not None else None,
        slot_mapping={},
    )
    with (
        override_forward_context(context),
        KVConnectorModelRunnerMixin._get_kv_connector_output(scheduler_output) as output,
    ):
        yield output


def handle_preemptions(connector: Any, scheduler_output: Any) -> None:
    """What the model runner does before it updates its batch."""
    connector.handle_preemptions(scheduler_output.kv_connector_metadata)


def attention_metadata(
    starts: Sequence[int], lengths: Sequence[int], tables: Sequence[np.ndarray], block_size: int
) -> CommonAttentionMetadata:
    """Attention metadata of a batch, as the runner builds it from its block tables.

    Args:
        starts: per request, computed tokens before this step.
        lengths: per request, tokens in this step.
        tables: per request, block ids.
        block_size: tokens per block.
    """
    ends = np.add(starts, lengths)
    slots = []
    for start, end, table in zip(starts, ends, tables, strict=True):
        positions = np.arange(start, end)
        slots.append(table[positions // block_size] * block_size + positions % block_size)
    width = max((len(t) for t in tables), default=0)
    padded = np.zeros((len(tables), width), dtype=np.int32)
    for row, table in zip(padded, tables, strict=True):
        row[: len(table)] = table
    query = torch.from_numpy(np.concatenate(([0], np.cumsum(lengths))).astype(np.int32))
    return CommonAttentionMetadata(
        query_start_loc=query,
        query_start_loc_cpu=query,
        seq_lens=torch.from_numpy(ends.astype(np.int32)),
        num_reqs=len(starts),
        num_actual_tokens=int(sum(lengths)),
        max_query_len=int(max(lengths, default=0)),
        max_seq_len=int(max(ends, default=0)),
        block_table_tensor=torch.from_numpy(padded),
        slot_mapping=torch.from_numpy(np.concatenate(slots).astype(np.int64)),
    )


def runner_output(
    request_ids: list[str], sampled: list[list[int]], connector_output: Any
) -> ModelRunnerOutput:
    """A step's output with a forward."""
    return ModelRunnerOutput(
        req_ids=request_ids,
        req_id_to_index={r: i for i, r in enumerate(request_ids)},
        sampled_token_ids=sampled,
        kv_connector_output=connector_output,
    )


def no_forward_output(connector_output: Any) -> ModelRunnerOutput:
    """A step's output without a forward."""
    return ModelRunnerOutput.with_kv_conn_output_only(connector_output)


def world_output(connector: Any, world_size: int) -> KVOutputAggregator | None:
    """The installed aggregator; vLLM aggregates only for more than one rank."""
    return KVOutputAggregator.from_connector(connector, world_size) if world_size > 1 else None
