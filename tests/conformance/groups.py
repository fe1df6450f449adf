"""Right connectors of several KV groups, of another design than the reference.

Every full block of every group is saved in the step in which it is filled, before a window lets it
go, so that more of them is found again.
"""

from __future__ import annotations

from typing import Any

from kvconform.connectors.ascend.connector import AscendConnector
from kvconform.connectors.ascend.groups import Groups, SupportsHMA
from kvconform.connectors.zoo.groups import _OtherGroups
from tests.conformance.right import LayerByLayer, Step


class InGroups(LayerByLayer, SupportsHMA):
    """Synchronous: each layer is loaded just before it is read."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any = None) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        groups = kv_cache_config.kv_cache_groups
        self.windows = [getattr(g.kv_cache_spec, "sliding_window", None) for g in groups]
        self.group_of = {name: i for i, g in enumerate(groups) for name in g.layer_names}
        self.all_tables: dict[str, list[list[int]]] = {}

    def _needed(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Group and index of the blocks that are needed to go on behind block ``stop``."""
        needed = []
        for group, window in enumerate(self.windows):
            first = 0 if window is None else max(0, stop * self.size - window + 1) // self.size
            needed += [(group, index) for index in range(max(start, first), stop)]
        return needed

    def _key(self, request: Any, group: int, index: int) -> bytes:
        return b"%d %s" % (group, bytes(request.block_hashes[index]))

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int, bool]:
        start = self.local[request.request_id] = num_computed_tokens // self.size
        most = min(len(request.block_hashes), (request.num_tokens - 1) // self.size)
        for stop in range(most, start, -1):
            if all(self._has(self._key(request, *place)) for place in self._needed(start, stop)):
                return (stop - start) * self.size, self.background
        return 0, False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        name = request.request_id
        self.requests[name] = request
        tables = self.all_tables[name] = [list(ids) for ids in blocks.get_block_ids()]
        if num_external_tokens:
            first = self.local[name]
            for group, index in self._needed(first, first + num_external_tokens // self.size):
                self.step.loads.append((self._key(request, group, index), tables[group][index]))
            self.step.loaded.append(name)

    def build_connector_meta(self, scheduler_output: Any) -> Step:
        step, self.step = self.step, Step()
        cached = scheduler_output.scheduled_cached_reqs
        computed = {r.req_id: r.num_computed_tokens for r in scheduler_output.scheduled_new_reqs}
        for i, name in enumerate(cached.req_ids):
            computed[name] = cached.num_computed_tokens[i]
            new = cached.new_block_ids[i]
            if name in cached.resumed_req_ids:
                self.all_tables[name] = [list(ids) for ids in new]
            elif new is not None:
                for table, ids in zip(self.all_tables[name], new, strict=True):
                    table += ids
        taken: set[bytes] = set()
        for name, count in scheduler_output.num_scheduled_tokens.items():
            start, request = computed[name], self.requests[name]
            full = min((start + count) // self.size, len(request.block_hashes))
            for group, table in enumerate(self.all_tables[name]):
                for index in range(start // self.size, full):
                    key = self._key(request, group, index)
                    if key not in taken and not self._has(key):
                        taken.add(key)
                        step.saves.append((key, table[index]))
        return step

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, None]:
        self.all_tables.pop(request.request_id, None)
        return self.request_finished(request, block_ids[0])

    def _of(self, layer: str, key: bytes) -> bool:
        return int(key.partition(b" ")[0]) == self.group_of[layer]

    def _load(self, layer: str) -> None:
        for key, block in self._metadata().loads:
            if self._of(layer, key):
                self.caches[layer][block].copy_(self.store[key, self.rank][layer])

    def save_kv_layer(
        self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any
    ) -> None:
        for key, block in self._metadata().saves:
            if self._of(layer_name, key):
                saved = self.store.setdefault((key, self.rank), {})
                saved.setdefault(layer_name, kv_layer[block].clone())


class InGroupsInBackground(InGroups):
    """Asynchronous, and done within the step."""

    background = True

    def get_finished(self, finished_req_ids: set[str]) -> tuple[None, set[str] | None]:
        done, self.done = self.done, set()
        return None, done or None


class _AnyEnd(Groups):
    def can_end(self, tokens: int, total: int) -> bool:
        return True


class _LoadsToTheEnd(_OtherGroups):
    groups_class = _AnyEnd


class LoadsToTheEnd(AscendConnector):
    """Promises all of a prompt, wherever windows begin, as vLLM lets it (SCH-01)."""

    scheduler_half_class = _LoadsToTheEnd
