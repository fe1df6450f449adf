"""Right connectors of other designs than the reference, to show that they are not accused.

An in-memory store per process, keyed by block hashes; every full block is saved in the step in
which it is filled, layer by layer, so that no request has to be kept for a save.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
)
from vllm.distributed.parallel_state import get_tensor_model_parallel_rank

from kvconform.scenario.target import Target

Store = dict[tuple[bytes, int], dict[str, Any]]
_STORES: dict[str, Store] = {}


def store(name: str) -> Store:
    """The store of a run; those of runs long ago are let go."""
    while len(_STORES) > 16:
        _STORES.pop(next(iter(_STORES)))
    return _STORES.setdefault(name, {})


@dataclass
class Step(KVConnectorMetadata):
    """Block hash and block id: to load before, and to save after the layers of this step."""

    loads: list[tuple[bytes, int]] = field(default_factory=list)
    saves: list[tuple[bytes, int]] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)  # those that have ended
    parts: dict[int, int] = field(default_factory=dict)  # leading tokens, where it is not all


class LayerByLayer(KVConnectorBase_V1):
    """Synchronous: each layer is loaded just before it is read."""

    background = False

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any = None) -> None:
        # 0.11.0 neither passes nor takes the last one.
        more = () if kv_cache_config is None else (kv_cache_config,)
        super().__init__(vllm_config, role, *more)
        self.size = vllm_config.cache_config.block_size
        self.ranks = vllm_config.parallel_config.tensor_parallel_size
        run = vllm_config.kv_transfer_config.kv_connector_extra_config["store"]
        # Other models, or other layouts, have other KV.
        self.store = store(f"{run} {vllm_config.model_config.model} {self.size} {self.ranks}")
        self.requests: dict[str, Any] = {}
        self.tables: dict[str, list[int]] = {}
        self.local: dict[str, int] = {}
        self.loading: set[str] = set()
        self.step = Step()
        self.caches: dict[str, Any] = {}
        self.done: set[str] = set()
        self.rank = get_tensor_model_parallel_rank() if role == KVConnectorRole.WORKER else 0

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int, bool]:
        found = num_computed_tokens // self.size
        most = min(len(request.block_hashes), (request.num_tokens - 1) // self.size)
        while found < most and self._has(bytes(request.block_hashes[found])):
            found += 1
        self.local[request.request_id] = num_computed_tokens // self.size
        more = max(0, found * self.size - num_computed_tokens)
        return more, self.background and more > 0

    def _has(self, key: bytes) -> bool:
        return all((key, rank) in self.store for rank in range(self.ranks))

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        name = request.request_id
        self.requests[name] = request
        ids = list(blocks.get_block_ids()[0])
        if name in self.loading:
            # Until 0.13 the second call has the blocks that are new; later it has all of them.
            self.loading.remove(name)
            held = self.tables[name]
            ids = ids if ids[: len(held)] == held else held + ids
        elif self.background and num_external_tokens:
            self.loading.add(name)
        self.tables[name] = ids
        if num_external_tokens:
            first = self.local[name]
            span = slice(first, first + -(-num_external_tokens // self.size))
            keys = [bytes(key) for key in request.block_hashes[span]]
            self.step.loads += zip(keys, self.tables[name][span], strict=True)
            self.step.loaded.append(name)
            if num_external_tokens % self.size:
                self.step.parts[self.step.loads[-1][1]] = num_external_tokens % self.size

    def build_connector_meta(self, scheduler_output: Any) -> Step:
        step, self.step = self.step, Step()
        cached = scheduler_output.scheduled_cached_reqs
        computed = {r.req_id: r.num_computed_tokens for r in scheduler_output.scheduled_new_reqs}
        resumed = getattr(cached, "resumed_req_ids", None)
        if resumed is None:  # 0.11.0
            flags = zip(cached.req_ids, cached.resumed_from_preemption, strict=True)
            resumed = {name for name, flag in flags if flag}
        for i, name in enumerate(cached.req_ids):
            computed[name] = cached.num_computed_tokens[i]
            new = cached.new_block_ids[i]
            if name in resumed:
                self.tables[name] = list(new[0])
            elif new is not None:
                self.tables[name] += new[0]
        taken: set[bytes] = set()
        for name, count in scheduler_output.num_scheduled_tokens.items():
            start, hashes = computed[name], self.requests[name].block_hashes
            for i in range(start // self.size, min((start + count) // self.size, len(hashes))):
                key = bytes(hashes[i])
                if key not in taken and not self._has(key):
                    taken.add(key)
                    step.saves.append((key, self.tables[name][i]))
        return step

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, None]:
        for table in (self.requests, self.tables, self.local):
            table.pop(request.request_id, None)
        self.loading.discard(request.request_id)
        return False, None

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        self.caches = kv_caches

    def _metadata(self) -> Step:
        metadata = self._get_connector_metadata()
        assert isinstance(metadata, Step)
        return metadata

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        if self.background:
            for layer in self.caches:
                self._load(layer)
            self.done.update(self._metadata().loaded)

    def wait_for_layer_load(self, layer_name: str) -> None:
        if not self.background:
            self._load(layer_name)

    def _load(self, layer: str) -> None:
        metadata = self._metadata()
        for key, block in metadata.loads:
            part = slice(metadata.parts.get(block, self.size))
            self.caches[layer][block][:, part].copy_(self.store[key, self.rank][layer][:, part])

    def save_kv_layer(
        self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any
    ) -> None:
        for key, block in self._metadata().saves:
            saved = self.store.setdefault((key, self.rank), {})
            saved.setdefault(layer_name, kv_layer[block].clone())

    def wait_for_save(self) -> None:
        pass


class InBackground(LayerByLayer):
    """Asynchronous, and done within the step."""

    background = True

    def get_finished(self, finished_req_ids: set[str]) -> tuple[None, set[str] | None]:
        done, self.done = self.done, set()
        return None, done or None


class KeepsAll(InBackground):
    """Has every request kept until its workers have heard of the end."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any = None) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self.kept: list[str] = []

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, None]:
        # A load is completed once, and be it the load of a request that was aborted (SCH-19).
        keep = request.request_id not in self.loading
        super().request_finished(request, block_ids)
        if keep:
            self.kept.append(request.request_id)
        return keep, None

    def build_connector_meta(self, scheduler_output: Any) -> Step:
        step = super().build_connector_meta(scheduler_output)
        step.kept, self.kept = self.kept, []
        return step

    def get_finished(  # type: ignore[override]
        self, finished_req_ids: set[str]
    ) -> tuple[set[str] | None, set[str] | None]:
        _, received = super().get_finished(finished_req_ids)
        return set(self._metadata().kept) or None, received


class PartOfABlock(InBackground):
    """Promises, and loads, all but the last tokens of what it has: within a block (SCH-06)."""

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int, bool]:
        more, background = super().get_num_new_matched_tokens(request, num_computed_tokens)
        return (more - 4, background) if more > 4 else (0, False)


class OneTooMany(LayerByLayer):
    """Wrong: promises one block more than there is."""

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int, bool]:
        more, background = super().get_num_new_matched_tokens(request, num_computed_tokens)
        return more + self.size if more else 0, background


def right(cls: type) -> Target:
    """One of these as a target."""
    return Target(cls.__name__, f"{cls.__module__}:{cls.__name__}", extra={"store": "{run}"})
