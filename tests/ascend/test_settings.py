"""What the connector reads from vLLM's configuration, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheGroupSpec,
    SlidingWindowSpec,
)

from kvconform.connectors.ascend.groups import LOADS_SEVERAL
from kvconform.connectors.ascend.settings import Settings
from tests.ascend.rig import SIZE, make_config, make_kv_cache_config

_SPEC: dict[str, Any] = {"num_kv_heads": 1, "head_size": 1, "dtype": torch.float32}


def test_defaults() -> None:
    settings = Settings.read(make_config(engine_id="mine"), make_kv_cache_config(8))
    assert settings == Settings(
        engine_id="mine",
        block_size=SIZE,
        num_blocks=8,
        world_size=1,
        may_load=True,
        may_save=True,
        async_min_blocks=2,
        store="engine mine",
        capacity_blocks=1024,
        transport=None,
    )


@pytest.mark.parametrize(
    ("role", "may_load", "may_save"),
    [("kv_producer", False, True), ("kv_consumer", True, False), ("kv_both", True, True)],
)
def test_roles(role: str, may_load: bool, may_save: bool) -> None:
    settings = Settings.read(make_config(role=role, tp=2), None)
    assert (settings.may_load, settings.may_save) == (may_load, may_save)
    assert (settings.world_size, settings.num_blocks) == (2, None)


@pytest.mark.parametrize("key", ["capacity_blocks", "async_min_blocks"])
def test_counts_are_positive(key: str) -> None:
    extra: dict[str, Any] = {key: 0}
    with pytest.raises(ValueError, match=key):
        Settings.read(make_config(**extra), None)


def test_offers_can_be_turned_off() -> None:
    assert not Settings.read(make_config(offers=False), None).offers
    with pytest.raises(ValueError, match="offers"):
        Settings.read(make_config(offers="no"), None)


@pytest.mark.parametrize(
    "name",
    ["prefill_context_parallel_size", "decode_context_parallel_size"],
)
def test_other_kinds_of_parallelism_are_refused(name: str) -> None:
    config = make_config()
    setattr(config.parallel_config, name, 2)
    with pytest.raises(ValueError, match=f"{name}=2"):
        Settings.read(config, None)


def test_finer_hashes_are_refused() -> None:
    kv_cache_config = make_kv_cache_config(8)
    kv_cache_config.hash_block_size = SIZE
    Settings.read(make_config(), kv_cache_config)
    kv_cache_config.hash_block_size = SIZE // 2
    with pytest.raises(ValueError, match="hash_block_size is 2"):
        Settings.read(make_config(), kv_cache_config)


def test_groups_of_another_kind_are_refused() -> None:
    window = SlidingWindowSpec(block_size=SIZE, sliding_window=8, **_SPEC)
    with pytest.raises(ValueError, match="full attention in the first"):
        Settings.read(make_config(), make_kv_cache_config(8, window))
    chunks = ChunkedLocalAttentionSpec(block_size=SIZE, attention_chunk_size=8, **_SPEC)
    with pytest.raises(ValueError, match="not ChunkedLocalAttentionSpec"):
        Settings.read(make_config(), make_kv_cache_config(8, chunks))
    larger = FullAttentionSpec(block_size=2 * SIZE, **_SPEC)
    with pytest.raises(ValueError, match="one block size"):
        Settings.read(make_config(), make_kv_cache_config(8, larger))


def test_windows_are_served_beside_full_attention() -> None:
    window = SlidingWindowSpec(block_size=SIZE, sliding_window=8, **_SPEC)
    two = make_kv_cache_config(8)
    two.kv_cache_groups.append(KVCacheGroupSpec(["more"], window))
    if not LOADS_SEVERAL:  # until 0.17
        with pytest.raises(ValueError, match="one KV cache group with this vLLM"):
            Settings.read(make_config(), two)
        return
    settings = Settings.read(make_config(), two)
    assert settings.windows == (0, 8)
    assert settings.async_min_blocks == 1


def test_a_connector_needs_a_transfer_config() -> None:
    config = make_config()
    config.kv_transfer_config = None
    with pytest.raises(ValueError, match="kv_transfer_config"):
        Settings.read(config, None)


def test_models_and_layouts_have_names_of_their_own() -> None:
    names = {Settings.read(make_config(), None).layout for _ in range(2)}
    for where, field, value in (
        ("model_config", "model", "another"),
        ("model_config", "dtype", torch.float16),
        ("cache_config", "block_size", 2 * SIZE),
    ):
        config = make_config()
        setattr(getattr(config, where), field, value)
        names.add(Settings.read(config, None).layout)
    assert len(names) == 4
