"""Running the worker's side of a step: process-global state, the mixin, outputs."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed import parallel_state
from vllm.distributed.kv_transfer import kv_transfer_state
from vllm.distributed.kv_transfer.kv_connector.utils import KVOutputAggregator, copy_kv_blocks
from vllm.forward_context import ForwardContext, override_forward_context
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.worker.gpu.kv_connector import ActiveKVConnector
from vllm.v1.worker.kv_connector_model_runner_mixin import KVConnectorModelRunnerMixin

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


class _SecondRunner(ActiveKVConnector):
    """The second model runner's side of a connector, as installed.

    It calls ``handle_preemptions`` itself; here that is done already, for all ranks at once.
    """

    def pre_forward(
        self, scheduler_output: Any, input_batch: Any = None, attn_metadata: Any = None
    ) -> None:
        metadata = scheduler_output.kv_connector_metadata
        assert metadata is not None
        self.kv_connector.bind_connector_metadata(metadata)
        self._pending_load_kwargs = self._build_load_kwargs(
            scheduler_output, input_batch, attn_metadata
        )
        if scheduler_output.has_sync_kv_loads:
            self._start_load_kv()


def register_kv_caches(config: VllmConfig, caches: Mapping[str, Any], runner: str) -> Any:
    """Hand the KV tensors to the process' transfer agent, as the model runner does.

    Returns:
        What runs the connector's side of each step under the second model runner, else None.
    """
    if runner == "v2":
        return _SecondRunner(config, dict(caches))
    agent = kv_transfer_state.get_kv_transfer_group()
    agent.register_kv_caches(dict(caches))
    agent.set_host_xfer_buffer_ops(copy_kv_blocks)
    return None


class Ran:
    """What the connector's side of a step reported; ``output`` is there when the step is over."""

    output: Any = None


@contextlib.contextmanager
def connector_step(
    second: Any,
    scheduler_output: Any,
    layers: Mapping[str, Any],
    metadata: Mapping[str, Any] | None,
) -> Iterator[Ran]:
    """The life cycle of one step, in a forward context, as the installed runner has it.

    Args:
        second: what :func:`register_kv_caches` returned.
        scheduler_output: the step.
        layers: attention layers by name.
        metadata: attention metadata by layer; None: no forward.
    """
    context = ForwardContext(
        no_compile_layers=dict(layers),
        attn_metadata=dict(metadata) if metadata is not None else None,
        slot_mapping={},
    )
    ran = Ran()
    with override_forward_context(context):
        if second is None:
            mixin = KVConnectorModelRunnerMixin
            with mixin._get_kv_connector_output(scheduler_output) as ran.output:
                yield ran
            return
        batch = None
        if metadata is not None:
            names = list(scheduler_output.num_scheduled_tokens)
            batch = SimpleNamespace(
                idx_mapping=torch.arange(len(names), dtype=torch.int32),
                req_ids=names,
                num_tokens=scheduler_output.total_num_scheduled_tokens,
            )
        second.pre_forward(scheduler_output, batch, metadata)
        yield ran
        second.finish_forward()
        ran.output = second.post_forward(scheduler_output.finished_req_ids)


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
    firsts, counts = np.asarray(starts), np.asarray(lengths)
    ends = firsts + counts
    query = np.zeros(len(counts) + 1, dtype=np.int32)
    np.cumsum(counts, out=query[1:])
    width = max((len(t) for t in tables), default=0)
    padded = np.zeros((len(tables), width), dtype=np.int32)
    for row, table in zip(padded, tables, strict=True):
        row[: len(table)] = table
    # Per token: its request, its position, and so its slot.
    rows = np.repeat(np.arange(len(counts)), counts)
    positions = np.arange(len(rows)) + (firsts - query[:-1])[rows]
    slots = padded[rows, positions // block_size].astype(np.int64) * block_size
    slots += positions % block_size
    query_start_loc = torch.from_numpy(query)
    return CommonAttentionMetadata(
        query_start_loc=query_start_loc,
        query_start_loc_cpu=query_start_loc,
        seq_lens=torch.from_numpy(ends.astype(np.int32)),
        num_reqs=len(starts),
        num_actual_tokens=len(rows),
        max_query_len=max(lengths, default=0),
        max_seq_len=int(ends.max(initial=0)),
        block_table_tensor=torch.from_numpy(padded),
        slot_mapping=torch.from_numpy(slots),
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
