"""The yardstick: a vLLM that is stepped with nothing watching it.

A real scheduler, one worker half in the order of the real mixin's hooks, everything pickled on its
way to the worker and back, and a model whose KV is written, read back through the block tables, and
decides the next token. No events, no checks, no poison, no blame.

Frozen: it must not be changed, however slow it looks. Ratios to it mean something only as long as
it stays what it is. When it was frozen, a step of it cost 1.01 times one of the prototype (0.97 to
1.01 in three runs: medians over 15 to 25 rounds of 300 steps, in turns in one process, vLLM 0.32.0,
6 live requests, the connector of ``idle.py`` in both). Like the prototype's, its model writes KV
token by token, which is more than half of its time.

``engine/compat`` sets it up; nothing that is timed comes from there.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from vllm.config import set_current_vllm_config
from vllm.distributed.kv_transfer import kv_transfer_state
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole
from vllm.forward_context import ForwardContext, override_forward_context
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.worker.kv_connector_model_runner_mixin import KVConnectorModelRunnerMixin

from kvconform.engine import compat
from kvconform.engine.compat.layout import HEAD_SIZE, HEADS
from kvconform.scenario.shape import Shape
from kvconform.scenario.target import Target

LAYERS = 2


def kv_of(token: int, position: int, layer: int) -> float:
    """What a token's KV must be; small enough for a float32 to hold it exactly."""
    return float((token + 1) * (position + 3) + layer)


def token_after(kv_sum: int) -> int:
    """The next token, from the sum of all KV that attention read."""
    return 3 + kv_sum % 497


def expected(prompt: Sequence[int], count: int) -> list[int]:
    """The output that a request must have, computed without an engine."""
    tokens = list(prompt)
    for _ in range(count):
        kv = (kv_of(t, p, la) for la in range(LAYERS) for p, t in enumerate(tokens))
        tokens.append(token_after(int(sum(kv))))
    return tokens[len(prompt) :]


class Layer:
    """An attention layer, as connectors find it in the forward context."""

    def __init__(self, kv_cache: torch.Tensor) -> None:
        self.kv_cache = kv_cache


class Rank:
    """The one worker: its half of the connector, its batch, its KV, and its model."""

    def __init__(self, connector: Any, names: Sequence[str], shape: Shape) -> None:
        dims = (shape.num_blocks, HEADS, shape.block_size, 2 * HEAD_SIZE)
        self.connector = connector
        self.size = shape.block_size
        self.layers = {name: Layer(torch.zeros(dims)) for name in names}
        self.tokens: dict[str, list[int]] = {}
        self.tables: dict[str, list[int]] = {}
        self.prompts: dict[str, int] = {}
        connector.register_kv_caches({n: la.kv_cache for n, la in self.layers.items()})

    def execute(self, so: Any) -> ModelRunnerOutput:
        """One step, in the order of vLLM's model runner."""
        self.connector.handle_preemptions(so.kv_connector_metadata)
        spans = self._update(so)
        sampled: list[list[int]] = []
        metadata = {name: object() for name in self.layers} if spans else None
        context = ForwardContext(
            no_compile_layers=self.layers, attn_metadata=metadata, slot_mapping={}
        )
        kv_transfer_state._KV_CONNECTOR_AGENT = self.connector
        try:
            with (
                override_forward_context(context),
                KVConnectorModelRunnerMixin._get_kv_connector_output(so) as report,
            ):
                if metadata is not None:
                    sampled = self._forward(spans, metadata)
        finally:
            kv_transfer_state._KV_CONNECTOR_AGENT = None
        if not spans:
            return ModelRunnerOutput.with_kv_conn_output_only(report)
        return ModelRunnerOutput(
            req_ids=list(spans),
            req_id_to_index={name: i for i, name in enumerate(spans)},
            sampled_token_ids=sampled,
            kv_connector_output=report,
        )

    def _update(self, so: Any) -> dict[str, tuple[int, int]]:
        """Bring the batch up to date; per scheduled request, the positions to compute."""
        for name in so.finished_req_ids:
            self.tokens.pop(name, None)
            self.tables.pop(name, None)
            self.prompts.pop(name, None)
        starts = {}
        for new in so.scheduled_new_reqs:
            name = new.req_id
            starts[name] = new.num_computed_tokens
            self.tokens[name] = list(new.prompt_token_ids)
            self.tables[name] = list(new.block_ids[0])
            self.prompts[name] = len(new.prompt_token_ids)
        cached = so.scheduled_cached_reqs
        for i, name in enumerate(cached.req_ids):
            starts[name] = cached.num_computed_tokens[i]
            more = cached.new_block_ids[i]
            if name in cached.resumed_req_ids:
                self.tables[name] = list(more[0])
            elif more is not None:
                self.tables[name] += more[0]
            if name in cached.all_token_ids:
                self.tokens[name] = list(cached.all_token_ids[name])
            # Tokens that the scheduler dropped after a failed load go here too.
            del self.tokens[name][self.prompts[name] + cached.num_output_tokens[i] :]
        return {n: (starts[n], starts[n] + k) for n, k in so.num_scheduled_tokens.items()}

    def _forward(
        self, spans: Mapping[str, tuple[int, int]], metadata: Mapping[str, object]
    ) -> list[list[int]]:
        size = self.size
        sums = dict.fromkeys(spans, 0)
        for index, (layer_name, layer) in enumerate(self.layers.items()):
            self.connector.wait_for_layer_load(layer_name)
            kv = layer.kv_cache
            for name, (start, end) in spans.items():
                tokens, table = self.tokens[name], self.tables[name]
                for position in range(start, end):
                    block, slot = table[position // size], position % size
                    kv[block, 0, slot] = kv_of(tokens[position], position, index)
            for name, (_, end) in spans.items():
                blocks = self.tables[name][: -(-end // size)]
                read = kv[blocks, 0, :, 0].reshape(-1)[:end]
                sums[name] += int(read.double().sum().item())
            self.connector.save_kv_layer(layer_name, kv, metadata[layer_name])
        sampled = []
        for name, (_, end) in spans.items():
            tokens = self.tokens[name]
            new = [token_after(sums[name])] if end == len(tokens) else []
            tokens += new
            sampled.append(new)
        return sampled


class BareLoop:
    """One engine with nothing around it.

    Attributes:
        outputs: per request, the tokens delivered so far.
    """

    def __init__(self, target: Target, shape: Shape | None = None) -> None:
        shape = shape or Shape()
        config = compat.build_config(target, 0, None, shape, target.extra)
        with set_current_vllm_config(config):
            self.scheduler = compat.build_scheduler(config, target, shape).scheduler
        layout = self.scheduler.kv_cache_config
        config = compat.build_config(target, 0, 0, shape, target.extra)
        with set_current_vllm_config(config):
            connector = KVConnectorFactory.create_connector(
                config=config, role=KVConnectorRole.WORKER, kv_cache_config=layout
            )
            self.rank = Rank(connector, layout.kv_cache_groups[0].layer_names, shape)
        self.outputs: dict[str, list[int]] = {}
        self._hasher = get_request_block_hasher(shape.block_size, sha256)

    def add(self, prompt: Sequence[int], max_tokens: int) -> str:
        """A request arrives; its name."""
        name = f"r{len(self.outputs)}"
        self.outputs[name] = []
        self.scheduler.add_request(
            Request(
                request_id=name,
                prompt_token_ids=list(prompt),
                sampling_params=SamplingParams(
                    max_tokens=max_tokens, ignore_eos=True, temperature=0.0
                ),
                pooling_params=None,
                arrival_time=float(len(self.outputs)),
                block_hasher=self._hasher,
            )
        )
        return name

    def step(self) -> int:
        """One turn of the engine loop; the tokens that it scheduled."""
        so = self.scheduler.schedule()
        output = self.rank.execute(pickle.loads(pickle.dumps(so)))
        output = pickle.loads(pickle.dumps(output))
        for delivered in self.scheduler.update_from_output(so, output).values():
            for one in delivered.outputs:
                self.outputs[one.request_id] += one.new_token_ids
        return int(so.total_num_scheduled_tokens)

    def live(self) -> int:
        """Requests that the scheduler has not forgotten."""
        return len(self.scheduler.requests)

    def close(self) -> None:
        """Shut both halves of the connector down."""
        self.rank.connector.shutdown()
        self.scheduler.connector.shutdown()
