"""What one engine is built of: its scheduler, both halves of the connector, requests."""

from __future__ import annotations

import functools
import importlib
import itertools
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from vllm.config import VllmConfig
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.multi_connector import MultiConnector
from vllm.lora.request import LoRARequest
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.sampling_params import SamplingParams
from vllm.v1.core import kv_cache_utils
from vllm.v1.core.encoder_cache_manager import EncoderCacheManager
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from kvconform.engine.compat.can import supports_groups
from kvconform.engine.compat.fit import fitting
from kvconform.engine.compat.layout import build_kv_cache_config
from kvconform.scenario.identity import MEDIA_TOKENS, Identity
from kvconform.scenario.shape import Shape
from kvconform.scenario.target import Target

try:
    from vllm.utils.hashing import sha256
except ImportError:  # 0.11.0
    from vllm.utils import sha256

ENCODER_TOKENS = 4096
"""What the encoder of images may compute in a step, and keep: more than is ever asked for."""

_arrivals = itertools.count()
init_none_hash(sha256)


@dataclass(frozen=True)
class Parts:
    """What one engine is built of."""

    scheduler: Any
    config: VllmConfig
    hash_block_size: int
    """Tokens per block hash."""


def named(text: str) -> Any:
    """Import ``package.module:Name`` (ImportError and AttributeError pass through)."""
    module, _, name = text.partition(":")
    return getattr(importlib.import_module(module), name)


def connector_class(target: Target) -> type:
    """Import the target's class (ImportError and AttributeError pass through)."""
    if target.prepare:
        named(target.prepare)()
    return named(target.cls)


def connector_classes(target: Target) -> list[type]:
    """The target's class, and those of its children if it is a MultiConnector."""
    found = [connector_class(target)]
    for child in target.extra.get("connectors", ()):
        name, module = child["kv_connector"], child.get("kv_connector_module_path")
        if module is not None:
            found.append(getattr(importlib.import_module(module), name))
        else:
            found.append(KVConnectorFactory._registry[name]())
    return found


def register_children(target: Target) -> None:
    """Make the children of a composition known by their class' names, as a plugin does.

    MultiConnector finds by that name alone who can read a child's statistics (docs/findings.md).
    """
    for child in target.extra.get("connectors", ()):
        name, module = child["kv_connector"], child.get("kv_connector_module_path")
        if module is not None and name not in KVConnectorFactory._registry:
            KVConnectorFactory.register_connector(name, module, name)


def serves_groups(target: Target) -> bool:
    """Whether a target, and each of its children, takes block ids of several KV groups."""
    return all(map(supports_groups, connector_classes(target)))


def children(connector: Any) -> list[Any]:
    """The connectors that a connector of vLLM's is composed of; none, as a rule."""
    if not isinstance(connector, MultiConnector):
        return []
    return list(connector._connectors)  # sub_connectors, in later releases


def scheduler_class(target: Target, shape: Shape) -> type:
    """The class of the scheduler that engines of this target and shape have.

    A class of the target's that is derived from one of vLLM's is used as it is, whatever the shape
    says: vLLM does the same. Any other is mixed into the one that the shape asks for.
    """
    own: type = AsyncScheduler if shape.async_scheduling else Scheduler
    if not target.scheduler:
        return own
    cls = named(target.scheduler)
    return cls if issubclass(cls, Scheduler) else _mixed(cls, own)


@functools.cache
def _mixed(mixin: type, own: type) -> type:
    return type(mixin.__name__, (mixin, own), {"__module__": mixin.__module__})


def build_scheduler(config: VllmConfig, target: Target, shape: Shape) -> Parts:
    """A real scheduler, with the scheduler half that it makes for itself."""
    kv_cache_config = build_kv_cache_config(shape)
    config.cache_config.num_gpu_blocks = shape.num_blocks
    block_size = hash_block_size = shape.block_size
    resolve = getattr(kv_cache_utils, "resolve_kv_cache_block_sizes", None)
    if resolve is not None:
        block_size, hash_block_size = resolve(kv_cache_config, config)
        _hash_blocks(kv_cache_config, hash_block_size)
    scheduler = scheduler_class(target, shape)(
        **fitting(
            Scheduler,
            vllm_config=config,
            kv_cache_config=kv_cache_config,
            structured_output_manager=StructuredOutputManager(config),
            block_size=block_size,
            hash_block_size=hash_block_size,
            log_stats=True,
        )
    )
    # As for a model that sees: ours has no processor that could be asked how much that takes.
    scheduler.max_num_encoder_input_tokens = ENCODER_TOKENS
    scheduler.encoder_cache_manager = EncoderCacheManager(cache_size=ENCODER_TOKENS)
    if shape.runner == "v2":
        # The output's shape is the scheduler's to choose; the runner itself would need Triton.
        scheduler.use_v2_model_runner = True
    return Parts(scheduler, config, hash_block_size)


def _hash_blocks(kv_cache_config: KVCacheConfig, tokens: int) -> None:
    kv_cache_config.hash_block_size = tokens
    kv_cache_config.cache_hit_alignment_tokens = tokens


def build_worker_connector(config: VllmConfig, parts: Parts, shape: Shape, stage: int) -> Any:
    """A worker half of a pipeline stage, made as the model runner makes it."""
    kv_cache_config = build_kv_cache_config(shape, stage)
    if hasattr(kv_cache_config, "hash_block_size"):
        _hash_blocks(kv_cache_config, parts.hash_block_size)
    return KVConnectorFactory.create_connector(
        **fitting(
            KVConnectorFactory.create_connector,
            config=config,
            role=KVConnectorRole.WORKER,
            kv_cache_config=kv_cache_config,
        )
    )


@functools.lru_cache(maxsize=16)
def _hasher(block_size: int) -> Any:
    return get_request_block_hasher(block_size, sha256)


@functools.lru_cache(maxsize=256)
def _adapter(name: str | None, version: int) -> LoRARequest | None:
    """One that takes the place of another comes from another folder."""
    if name is None:
        return None
    folder = f"never-read-{version}"
    return LoRARequest(name, 1 + zlib.crc32(name.encode()) % 10_000, folder)


def _media(identity: Identity, num_tokens: int) -> list[MultiModalFeatureSpec] | None:
    """The image in a prompt, as the front end names it; what it shows has been sent before."""
    if identity.media is None:
        return None
    length = min(MEDIA_TOKENS, num_tokens - identity.at)
    name = zlib.crc32(identity.media.encode()).to_bytes(4, "big").hex() * 8
    where = PlaceholderRange(offset=identity.at, length=length)
    return [MultiModalFeatureSpec(None, "image", name, where)]


def _embeds(encoder: str, prompt: tuple[int, ...]) -> torch.Tensor:
    """What an encoder makes of a prompt: a row for each token, shape ``[tokens, 2]``."""
    which = float(zlib.crc32(encoder.encode()) % 65_536)
    return torch.tensor([(float(token), which) for token in prompt])


def build_request(
    request_id: str,
    prompt: tuple[int, ...],
    max_tokens: int,
    identity: Identity,
    block_size: int,
    *,
    priority: int = 0,
    params: Mapping[str, Any] | None = None,
    stop: int | None = None,
) -> Request:
    """A request as the front end would make it: greedy, ended by the token ``stop``.

    Of a prompt that comes as embeddings vLLM does not know the tokens.

    ``params`` are its ``kv_transfer_params``.
    """
    sampling = SamplingParams(
        max_tokens=max_tokens,
        ignore_eos=True,
        temperature=0.0,
        stop_token_ids=None if stop is None else [stop],
    )
    if params is not None:
        sampling.extra_args = {"kv_transfer_params": dict(params)}
    return Request(
        **fitting(
            Request,
            request_id=request_id,
            prompt_token_ids=list(prompt) if identity.embeds is None else None,
            prompt_embeds=None if identity.embeds is None else _embeds(identity.embeds, prompt),
            mm_features=_media(identity, len(prompt)),
            sampling_params=sampling,
            priority=priority,
            pooling_params=None,
            eos_token_id=None,
            arrival_time=float(next(_arrivals)),  # any increasing number: order decides, not time
            cache_salt=identity.salt,
            lora_request=_adapter(identity.adapter, identity.version),
            block_hasher=_hasher(block_size),
        )
    )


def finished_status(name: str) -> RequestStatus:
    """A finish status by name, for ``finish_requests``."""
    return RequestStatus[name]
