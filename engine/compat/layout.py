"""The simulated model, and the layout of its KV cache."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import torch
from vllm.model_executor.models.registry import ModelRegistry
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec

from kvconform.engine.compat.fit import fitting
from kvconform.scenario.shape import Shape

HEADS = 2
"""KV heads of the simulated model, over all ranks."""

HEAD_SIZE = 4
"""Elements (float32) of K, and of V, per head and token."""

LAYERS_PER_GROUP = 2

_QUERY_HEADS = 4
"""As many as there may be tensor-parallel ranks."""

_ARCHITECTURE = "KvconformModel"

_MODEL = {  # the config of a tiny OPT: its weights and tokenizer are never read
    "architectures": [_ARCHITECTURE],
    "model_type": "opt",
    "hidden_size": _QUERY_HEADS * HEAD_SIZE,
    "ffn_dim": 32,
    "num_hidden_layers": LAYERS_PER_GROUP,
    "num_attention_heads": _QUERY_HEADS,
    "num_key_value_heads": HEADS,
    "head_dim": HEAD_SIZE,
    "vocab_size": 512,
    "max_position_embeddings": 2048,
    "word_embed_proj_dim": _QUERY_HEADS * HEAD_SIZE,
    "do_layer_norm_before": True,
    "activation_function": "relu",
    "torch_dtype": "float32",
    "bos_token_id": 2,
    "eos_token_id": 2,
    "pad_token_id": 1,
}


class _Model(torch.nn.Module):
    """Looks like a model that generates text, in pipeline stages if need be, and never runs.

    vLLM would inspect a model of its own in another process, which takes seconds.
    """

    supports_pp = True

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        raise NotImplementedError

    def embed_input_ids(self, input_ids: Any) -> Any:
        raise NotImplementedError

    get_input_embeddings = embed_input_ids  # its name until 0.11

    def forward(self, input_ids: Any, positions: Any, *, intermediate_tensors: Any) -> Any:
        raise NotImplementedError

    def make_empty_intermediate_tensors(self, batch_size: int, dtype: Any, device: Any) -> Any:
        raise NotImplementedError

    def compute_logits(self, hidden_states: Any) -> Any:
        raise NotImplementedError


ModelRegistry.register_model(_ARCHITECTURE, _Model)


@functools.cache
def model_dir(model: str = "") -> str:
    """The folder with the config of a model; all are of one make, and differ in their weights."""
    text = json.dumps(_MODEL | ({"_name_or_path": model} if model else {}))
    # Named by what it holds: another kvconform on this machine may want another model.
    name = hashlib.sha256(text.encode()).hexdigest()[:8]
    folder = Path(tempfile.gettempdir()) / f"kvconform-model-{name}"
    folder.mkdir(exist_ok=True)
    path = folder / "config.json"
    if not path.exists():
        scratch = folder / f"config-{os.getpid()}.json"
        scratch.write_text(text)
        scratch.replace(path)
    return str(folder)


def layer_names(shape: Shape, stage: int) -> tuple[tuple[str, ...], ...]:
    """Per KV group, the names of the layers that a pipeline stage holds."""
    count = LAYERS_PER_GROUP // shape.pp
    firsts = range(0, LAYERS_PER_GROUP * shape.groups, LAYERS_PER_GROUP)
    return tuple(
        tuple(f"model.layers.{first + stage * count + i}.self_attn.attn" for i in range(count))
        for first in firsts
    )


def build_kv_cache_config(shape: Shape, stage: int = 0) -> KVCacheConfig:
    """The layout of a pipeline stage's KV cache; the scheduler gets that of the first."""
    spec = {
        "block_size": shape.block_size,
        "num_kv_heads": max(1, HEADS // shape.tp),
        "head_size": HEAD_SIZE,
        "dtype": torch.float32,
        "use_mla": False,
    }
    layers = layer_names(shape, stage)
    groups = [
        KVCacheGroupSpec(list(layers[0]), FullAttentionSpec(**fitting(FullAttentionSpec, **spec)))
    ]
    if shape.window:
        from vllm.v1.kv_cache_interface import SlidingWindowSpec

        groups.append(
            KVCacheGroupSpec(
                list(layers[1]),
                SlidingWindowSpec(
                    **fitting(SlidingWindowSpec, **spec, sliding_window=shape.window)
                ),
            )
        )
    kv_cache_config = KVCacheConfig(
        num_blocks=shape.num_blocks, kv_cache_tensors=[], kv_cache_groups=groups
    )
    if hasattr(kv_cache_config, "kv_cache_layout"):
        kv_cache_config.kv_cache_layout = "LBHNC"
    return kv_cache_config
