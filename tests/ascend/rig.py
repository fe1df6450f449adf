"""The reference connector in a real scheduler, with a model that checks its KV.

Everything of vLLM is real but the model runner and the model: the KV of a position is a number that
follows from the tokens up to there, the layer and the rank; attention reads all of it back and
notes what is wrong; the next token follows from the tokens. So outputs are known in advance.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import itertools
import json
import tempfile
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from vllm.config import (
    CacheConfig,
    DeviceConfig,
    KVTransferConfig,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
    VllmConfig,
)
from vllm.distributed import parallel_state
from vllm.distributed.kv_transfer import kv_transfer_state
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.utils import KVOutputAggregator
from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole
from vllm.forward_context import ForwardContext, override_forward_context
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager
from vllm.v1.worker.kv_connector_model_runner_mixin import KVConnectorModelRunnerMixin

from kvconform.connectors.ascend.scheduler import SchedulerHalf
from kvconform.connectors.ascend.store import HostStore
from tests.ascend.held import HeldTransport

LAYERS = ("model.layers.0.self_attn.attn", "model.layers.1.self_attn.attn")
SIZE = 4
"""Tokens per block."""

_numbers = itertools.count()
init_none_hash(sha256)


def prompt(length: int, family: int = 0) -> list[int]:
    """A prompt; those of one family are prefixes of each other."""
    return [3 + (family * 97 + position * 7) % 400 for position in range(length)]


def kv_value(tokens: Sequence[int], position: int, layer: int, rank: int) -> float:
    """The KV of a position; exact in float32."""
    digest = 1 + layer + 2 * rank
    for token in tokens[: position + 1]:
        digest = (digest * 31 + token) % 8_388_593
    return float(digest + 1)


def next_token(tokens: Sequence[int]) -> int:
    """The token that follows."""
    return 3 + int(kv_value(tokens, len(tokens) - 1, 5, 5)) % 400


def expected(start: Sequence[int], count: int) -> list[int]:
    """What an engine without a connector would put out."""
    tokens = list(start)
    for _ in range(count):
        tokens.append(next_token(tokens))
    return tokens[len(start) :]


@functools.cache
def model_dir() -> str:
    folder = Path(tempfile.mkdtemp(prefix="tiny-opt-"))
    text = json.dumps(
        {
            "architectures": ["OPTForCausalLM"],
            "model_type": "opt",
            "hidden_size": 16,
            "ffn_dim": 32,
            "num_hidden_layers": len(LAYERS),
            "num_attention_heads": 2,
            "vocab_size": 512,
            "max_position_embeddings": 2048,
            "word_embed_proj_dim": 16,
            "torch_dtype": "float32",
            "eos_token_id": 2,
        }
    )
    (folder / "config.json").write_text(text)
    return str(folder)


def make_config(
    *,
    tp: int = 1,
    async_scheduling: bool = False,
    policy: str = "recompute",
    role: str = "kv_both",
    prefix_caching: bool = True,
    engine_id: str | None = None,
    **extra: Any,
) -> VllmConfig:
    """A config for the connector; ``extra`` is its own configuration."""
    parallel = ParallelConfig()
    parallel.tensor_parallel_size = tp  # set afterwards: the constructor looks for devices
    config = VllmConfig(
        model_config=ModelConfig(
            model=model_dir(),
            tokenizer=model_dir(),
            skip_tokenizer_init=True,
            dtype="float32",
            max_model_len=128,
            enforce_eager=True,
        ),
        scheduler_config=SchedulerConfig(
            max_num_seqs=4,
            max_num_batched_tokens=64,
            max_model_len=128,
            is_encoder_decoder=False,
            enable_chunked_prefill=True,
            async_scheduling=async_scheduling,
            disable_hybrid_kv_cache_manager=True,
        ),
        cache_config=CacheConfig(
            block_size=SIZE,
            enable_prefix_caching=prefix_caching,
            prefix_caching_hash_algo="sha256",
        ),
        kv_transfer_config=KVTransferConfig(
            kv_connector="AscendConnector",
            kv_connector_module_path="kvconform.connectors.ascend",
            kv_role=role,
            engine_id=engine_id or f"engine{next(_numbers)}",
            kv_connector_extra_config=extra,
            kv_load_failure_policy=policy,
        ),
        parallel_config=parallel,
        device_config=DeviceConfig("cpu"),
    )
    config.scheduler_config.async_scheduling = async_scheduling  # __post_init__ may turn it on
    return config


def make_kv_cache_config(num_blocks: int, spec: Any = None) -> KVCacheConfig:
    spec = spec or FullAttentionSpec(
        block_size=SIZE, num_kv_heads=1, head_size=1, dtype=torch.float32
    )
    return KVCacheConfig(
        num_blocks=num_blocks,
        kv_cache_tensors=[],
        kv_cache_groups=[KVCacheGroupSpec(list(LAYERS), spec)],
    )


class Group:
    """A process group of which only the rank is ever asked."""

    def __init__(self, rank: int) -> None:
        self.rank_in_group = rank


@contextlib.contextmanager
def process_of(rank: int, connector: Any) -> Iterator[None]:
    """What is global in a worker's process."""
    saved = parallel_state._TP, parallel_state._PP, kv_transfer_state._KV_CONNECTOR_AGENT
    parallel_state._TP, parallel_state._PP = Group(rank), Group(0)
    kv_transfer_state._KV_CONNECTOR_AGENT = connector
    try:
        yield
    finally:
        parallel_state._TP, parallel_state._PP, kv_transfer_state._KV_CONNECTOR_AGENT = saved


class Worker:
    """A rank: its worker half, its KV, and what it knows of requests."""

    def __init__(self, config: VllmConfig, kv_cache_config: KVCacheConfig, rank: int) -> None:
        self.rank = rank
        self.kv = {n: torch.zeros(kv_cache_config.num_blocks, 1, SIZE, 2) for n in LAYERS}
        self.blocks: dict[str, list[int]] = {}
        self.tokens: dict[str, list[int]] = {}
        self.prompt_lengths: dict[str, int] = {}
        self.misread: list[tuple[str, int]] = []
        with process_of(rank, None):
            self.connector = KVConnectorFactory.create_connector(
                config, KVConnectorRole.WORKER, kv_cache_config
            )
        self.connector.register_kv_caches(self.kv)

    @property
    def transport(self) -> Any:
        return self.connector.worker.transport

    def execute(self, so: Any) -> ModelRunnerOutput:
        self.connector.handle_preemptions(so.kv_connector_metadata)
        self._learn(so)
        scheduled = so.num_scheduled_tokens
        known = inspect.signature(ForwardContext).parameters
        context = ForwardContext(
            no_compile_layers={},
            attn_metadata=dict.fromkeys(LAYERS) if scheduled else None,
            slot_mapping={},
            **({"virtual_engine": 0} if "virtual_engine" in known else {}),
        )
        with (
            process_of(self.rank, self.connector),
            override_forward_context(context),
            KVConnectorModelRunnerMixin._get_kv_connector_output(so) as report,
        ):
            sampled = self._forward(so) if scheduled else []
        return ModelRunnerOutput(
            req_ids=list(scheduled),
            req_id_to_index={name: i for i, name in enumerate(scheduled)},
            sampled_token_ids=sampled,
            # A step without a forward, and with nothing to report, has no report at all.
            kv_connector_output=report if scheduled or not report.is_empty() else None,
        )

    def _learn(self, so: Any) -> None:
        for name in so.finished_req_ids:
            for known in (self.blocks, self.tokens, self.prompt_lengths):
                known.pop(name, None)
        for new in so.scheduled_new_reqs:
            self.blocks[new.req_id] = list(new.block_ids[0])
            self.tokens[new.req_id] = list(new.prompt_token_ids)
            self.prompt_lengths[new.req_id] = len(new.prompt_token_ids)
        cached = so.scheduled_cached_reqs
        for i, name in enumerate(cached.req_ids):
            if name in cached.resumed_req_ids:
                self.blocks[name] = list(cached.new_block_ids[i][0])
            elif cached.new_block_ids[i] is not None:
                self.blocks[name].extend(cached.new_block_ids[i][0])
            if name in cached.all_token_ids:
                self.tokens[name] = list(cached.all_token_ids[name])
            del self.tokens[name][self.prompt_lengths[name] + cached.num_output_tokens[i] :]

    def _forward(self, so: Any) -> list[list[int]]:
        starts = {new.req_id: new.num_computed_tokens for new in so.scheduled_new_reqs}
        cached = so.scheduled_cached_reqs
        starts.update(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        for layer, name in enumerate(LAYERS):
            self.connector.wait_for_layer_load(name)
            kv = self.kv[name]
            for request, count in so.num_scheduled_tokens.items():
                for position in range(starts[request], starts[request] + count):
                    kv[self._slot(request, position)] = self._value(request, position, layer)
            for request, count in so.num_scheduled_tokens.items():
                for position in range(starts[request] + count):
                    want = self._value(request, position, layer)
                    if bool((kv[self._slot(request, position)] != want).any()):
                        self.misread.append((request, position))
            self.connector.save_kv_layer(name, kv, None)
        sampled: list[list[int]] = []
        for request, count in so.num_scheduled_tokens.items():
            tokens = self.tokens[request]
            if starts[request] + count < len(tokens):
                sampled.append([])
            else:
                tokens.append(next_token(tokens))
                sampled.append([tokens[-1]])
        return sampled

    def _slot(self, request: str, position: int) -> tuple[int, int, int]:
        return self.blocks[request][position // SIZE], 0, position % SIZE

    def _value(self, request: str, position: int, layer: int) -> float:
        return kv_value(self.tokens[request], position, layer, self.rank)


class Engine:
    """A vLLM that is stepped by hand."""

    def __init__(self, *, num_blocks: int = 32, tp: int = 1, **config: Any) -> None:
        self.config = make_config(tp=tp, **config)
        self.num_blocks = num_blocks
        kv_cache_config = make_kv_cache_config(num_blocks)
        self.config.cache_config.num_gpu_blocks = num_blocks
        self.is_async = self.config.scheduler_config.async_scheduling
        self.scheduler = (AsyncScheduler if self.is_async else Scheduler)(
            vllm_config=self.config,
            kv_cache_config=kv_cache_config,
            structured_output_manager=StructuredOutputManager(self.config),
            block_size=SIZE,
            log_stats=True,
        )
        self.connector: Any = self.scheduler.connector
        self.half: SchedulerHalf = self.connector.scheduler
        self.workers = [Worker(self.config, kv_cache_config, rank) for rank in range(tp)]
        self.aggregator = KVOutputAggregator.from_connector(self.connector, tp) if tp > 1 else None
        self.outputs: dict[str, list[int]] = {}
        self.reasons: dict[str, str] = {}
        self.params: dict[str, dict[str, Any]] = {}
        """The ``kv_transfer_params`` that requests ended with."""
        self.reports: list[Any] = []
        """Per step, what vLLM was told about transfers."""
        self._queue: deque[tuple[Any, Any]] = deque()

    @property
    def store(self) -> HostStore:
        transport: Any = self.half.transport
        store = getattr(transport, "inner", transport).store
        assert isinstance(store, HostStore)
        return store

    @property
    def held(self) -> list[HeldTransport]:
        """The transports of all ranks, when they are of the kind that holds transfers."""
        return [worker.transport for worker in self.workers]

    @property
    def misread(self) -> list[tuple[str, int]]:
        return [found for worker in self.workers for found in worker.misread]

    def add(
        self,
        name: str,
        tokens: Sequence[int],
        max_tokens: int = 1,
        salt: str | None = None,
        prompt_logprobs: int | None = None,
        stop: int | None = None,
        params: dict[str, Any] | None = None,
    ) -> Request:
        request = Request(
            request_id=name,
            prompt_token_ids=list(tokens),
            sampling_params=SamplingParams(
                max_tokens=max_tokens,
                ignore_eos=True,
                temperature=0.0,
                prompt_logprobs=prompt_logprobs,
                stop_token_ids=[stop] if stop is not None else None,
                extra_args={"kv_transfer_params": params} if params is not None else None,
            ),
            pooling_params=None,
            arrival_time=float(next(_numbers)),
            cache_salt=salt,
            block_hasher=get_request_block_hasher(SIZE, sha256),
        )
        self.outputs[name] = []
        self.scheduler.add_request(request)
        return request

    def abort(self, name: str) -> None:
        self.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)

    def status(self, name: str) -> str | None:
        request = self.scheduler.requests.get(name)
        return request.status.name if request is not None else None

    def step(self) -> Any:
        """One turn of the engine loop; what was scheduled in it."""
        so = None
        if self._has_requests():
            so = self.scheduler.schedule()
            self._queue.append((so, self._execute(so)))
            if self.is_async and len(self._queue) < 2:
                return so
        if self._queue:
            self._update(*self._queue.popleft())
        return so

    def run(self, max_steps: int = 200) -> None:
        """Until nothing is left to do."""
        for _ in range(max_steps):
            if not (self._has_requests() or self._queue):
                return
            self.step()
        raise AssertionError(f"still at work: {list(self.scheduler.requests)}")

    def _has_requests(self) -> bool:
        # Before 0.23 an engine that only waits for a save to end goes idle until the next request.
        return bool(self.scheduler.has_requests() or self.scheduler.requests)

    def complete(self, name: str, tokens: Sequence[int], max_tokens: int = 1) -> list[int]:
        """Run one request to its end, and check what it put out."""
        self.add(name, tokens, max_tokens)
        self.run()
        assert self.misread == []
        assert self.outputs[name] == expected(tokens, max_tokens)
        return self.outputs[name]

    def _execute(self, so: Any) -> Any:
        # Copies for the way that everything takes between processes.
        outputs = [copy.deepcopy(worker.execute(copy.deepcopy(so))) for worker in self.workers]
        assert all(o.sampled_token_ids == outputs[0].sampled_token_ids for o in outputs)
        return self.aggregator.aggregate(outputs, 0) if self.aggregator else outputs[0]

    def _update(self, so: Any, output: Any) -> None:
        self.reports.append(output.kv_connector_output)
        for delivered in self.scheduler.update_from_output(so, output).values():
            for one in delivered.outputs:
                self.outputs[one.request_id].extend(one.new_token_ids)
                if one.finish_reason is not None:
                    self.reasons[one.request_id] = str(one.finish_reason)
                if one.kv_transfer_params is not None:
                    self.params[one.request_id] = one.kv_transfer_params

    def told(self, what: str) -> list[str]:
        """All requests that were ever reported as ``finished_recving`` or ``finished_sending``."""
        return [
            name
            for report in self.reports
            if report is not None
            for name in sorted(getattr(report, what) or ())
        ]

    def assert_quiet(self) -> None:
        """Nothing is left over, in vLLM or in the connector."""
        assert not self.scheduler.requests
        pool = self.scheduler.kv_cache_manager.block_pool
        assert pool.get_num_free_blocks() == self.num_blocks - 1
        if self.aggregator is not None:
            assert not self.aggregator._recv_remaining_count
            assert not self.aggregator._send_remaining_count
        half = self.half
        assert [half._lives, half._open, half._outbox] == [{}, {}, []]
        for worker in self.workers:
            mine = worker.connector.worker
            assert [mine._to_start, mine._load_errors, mine._closings] == [[], set(), {}]
        assert self.store.holders == frozenset()
