"""A model of half a megabyte with random weights, whose answers depend on every token it has read.

vLLM's ``load_format="dummy"`` will not do: with its weights the answer is the same whatever the
prompt says, so that wrong KV would go unnoticed. These are drawn wide enough (0.25 instead of 0.02)
that attention looks at everything.

The *swapped* model is the same but for its embeddings: token ``t`` has the vector of ``t ^ 256``.
Given a prompt, it computes the KV that the plain model computes for the prompt with all tokens
swapped. Who reads that KV under the name of the prompt, and answers as after the swapped one, has
read what was transferred, and computed none of it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

VOCABULARY = 512
SWAP = 256
LAYERS, HEADS, HEAD, HIDDEN, INNER = 2, 2, 32, 64, 128
_SPREAD = 0.25
_SEED = 0


def swapped(tokens: Sequence[int]) -> list[int]:
    """What the plain model would have to be given, to compute as the swapped one does."""
    return [token ^ SWAP for token in tokens]


def make_model(folder: Path, swap: bool = False) -> None:
    """Save the model in the form in which vLLM loads it (a Llama), without a tokenizer.

    Args:
        folder: is made; holds ``config.json`` and ``model.safetensors`` afterwards.
        swap: make the swapped one.
    """
    import torch
    from safetensors.torch import save_file

    generator = torch.Generator().manual_seed(_SEED)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.empty(shape).normal_(std=_SPREAD, generator=generator)

    embeddings = drawn(VOCABULARY, HIDDEN)
    weights = {
        "lm_head.weight": drawn(VOCABULARY, HIDDEN),
        "model.norm.weight": torch.ones(HIDDEN),
    }
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        for name in "qkvo":
            weights[f"{at}self_attn.{name}_proj.weight"] = drawn(HIDDEN, HIDDEN)
        weights[f"{at}mlp.gate_proj.weight"] = drawn(INNER, HIDDEN)
        weights[f"{at}mlp.up_proj.weight"] = drawn(INNER, HIDDEN)
        weights[f"{at}mlp.down_proj.weight"] = drawn(HIDDEN, INNER)
        for name in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{at}{name}.weight"] = torch.ones(HIDDEN)
    order = swapped(range(VOCABULARY)) if swap else list(range(VOCABULARY))
    weights["model.embed_tokens.weight"] = embeddings[order].contiguous()
    folder.mkdir(parents=True)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(_CONFIG, indent=1), encoding="utf-8")


_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "attention_bias": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": HIDDEN,
    "head_dim": HEAD,
    "intermediate_size": INNER,
    "max_position_embeddings": 2048,
    "mlp_bias": False,
    "num_attention_heads": HEADS,
    "num_hidden_layers": LAYERS,
    "num_key_value_heads": HEADS,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
    "vocab_size": VOCABULARY,
}
