"""One simulated rank: a worker half, its KV memory, and a model that reads what it writes.

The rank keeps its own view of requests from ``SchedulerOutput`` alone, as a model runner does:
append blocks, replace them on resume, truncate tokens after a failed load.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kvconform.engine import compat
from kvconform.engine.blame import Found
from kvconform.engine.memory import Memory
from kvconform.engine.oracle import WORDS, Stream, Words
from kvconform.scenario.prompt import mix64

Table = npt.NDArray[np.int64]


class BeyondError(Exception):
    """vLLM asked of its workers what, by all that they were told, they cannot do."""


class BeyondRequestsError(BeyondError):
    """A request was scheduled of which they were not told where it is."""


class BeyondTokensError(BeyondError):
    """A position was scheduled for which they have no token."""


class BeyondBlocksError(BeyondError):
    """A position was scheduled for which they have no block."""


class Layer:
    """An attention layer as a connector finds it in ``forward_context.no_compile_layers``."""

    def __init__(self, kv_cache: Any) -> None:
        self.kv_cache = kv_cache


@dataclass(slots=True)
class View:
    """What the rank knows of a request."""

    tokens: list[int]
    prompt_length: int
    tables: list[Table]
    stream: Stream
    """The stream that the request must follow."""


@dataclass(slots=True)
class Row:
    """A request's part of a step: positions ``[start, end)``.

    Attributes:
        request: its id.
        view: what the rank knows of it.
        tokens: its tokens, and behind them those that a drafter proposed.
    """

    request: str
    view: View
    start: int
    end: int
    tokens: list[int]


class Worker:
    """A rank's worker half, with the hook order of the installed mixin around a simulated model.

    Attributes:
        connector: the target's worker half.
        views: request id to what the rank knows of it.
        device: what the memory lies on.
        mark: how far the device has to get for the last step to be done.
    """

    def __init__(
        self,
        rank: int,
        memory: Memory,
        config: Any,
        connector: Any,
        stream_of: Callable[[str], Stream],
        ahead: bool = False,
    ) -> None:
        shape = memory.shape
        self.rank = rank
        self.stage = rank // shape.tp
        self.samples = self.stage == shape.pp - 1
        self.memory = memory
        self.config = config
        self.connector = connector
        self.block_size = shape.block_size
        self.window = shape.window
        self.drafts = shape.drafts
        self.groups = compat.layer_names(shape, self.stage)
        self.heads = tuple(memory.head(rank, local) for local in range(memory.heads))
        self.views: dict[str, View] = {}
        self.device = memory.device
        self.mark: Any = None
        self._ahead = self.device.defers and ahead
        self._stream_of = stream_of
        self._second: Any = None
        names = [name for group in self.groups for name in group]
        self.layers = {
            name: Layer(tensor)
            for group in self.groups
            for name, tensor in zip(group, memory.tensors[rank], strict=True)
        }
        # Where a layer of this stage is in the whole model.
        self._global = {n: int(n.split(".")[2]) for n in names}

    def register(self) -> None:
        """Hand the KV tensors to the connector."""
        caches = {name: layer.kv_cache for name, layer in self.layers.items()}
        self._second = compat.register_kv_caches(self.config, caches, self.memory.shape.runner)

    def prepare(self, so: Any) -> None:
        """What comes before all else in a step: until then, blocks still hold what they held."""
        compat.handle_preemptions(self.connector, so)

    def execute(self, so: Any, wrong: Callable[[str, Found], None]) -> Any:
        """One step; ``wrong`` hears of each request that attention read wrong KV for (once)."""
        self._update_views(so)
        if not so.total_num_scheduled_tokens:
            with compat.connector_step(self._second, so, self.layers, None) as ran:
                pass
            return compat.no_forward_output(ran.output)
        batch = self._batch(so)
        metadata = self._metadata(batch)
        deferred = self.drafts > 0
        misread: set[str] = set()

        def tell(request: str, found: Found) -> None:
            if request not in misread:
                misread.add(request)
                wrong(request, found)

        with compat.connector_step(self._second, so, self.layers, metadata, deferred) as ran:
            followed = self._forward(batch, metadata, tell)
        self.mark = self.device.mark(self.memory.engine, self.rank)
        if not self._ahead:
            self.device.reach(self.mark)
        # Where the device is not there yet, nothing is known to be wrong: told later, that ends
        # the run, so that it does not matter which tokens follow.
        sampled = [
            self._sample(row, stream, row.request in misread)
            for row, stream in zip(batch, followed, strict=True)
        ]
        if not self.samples:  # an earlier stage has nothing to say but what its connector says
            return compat.no_forward_output(ran.output)
        return compat.runner_output([row.request for row in batch], sampled, ran.output)

    def propose(self, so: Any) -> dict[str, list[int]]:
        """What a drafter proposes after a step, by request: what follows, and of that a few wrong.

        Nothing beyond the output's end: no drafter has to propose.
        """
        proposed = {}
        for request in so.num_scheduled_tokens:
            view = self.views[request]
            length = len(view.tokens)
            right = mix64(length) % (self.drafts + 1)
            follows = view.stream.tokens[length : length + self.drafts]
            proposed[request] = [t if n < right else t ^ 1 for n, t in enumerate(follows)]
        return proposed

    def _update_views(self, so: Any) -> None:
        for request_id in so.finished_req_ids:
            self.views.pop(request_id, None)
        for new in so.scheduled_new_reqs:
            self.views[new.req_id] = View(
                list(compat.new_tokens(new)),
                compat.prompt_length(new),
                [np.array(ids, dtype=np.int64) for ids in new.block_ids],
                self._stream_of(new.req_id),
            )
        cached = so.scheduled_cached_reqs
        resumed, all_tokens = compat.resumed(cached), compat.all_tokens(cached)
        counts = compat.output_counts(cached)
        for i, request_id in enumerate(cached.req_ids):
            view = self.views[request_id]
            new_ids = cached.new_block_ids[i]
            if request_id in resumed:
                view.tables = [np.array(ids, dtype=np.int64) for ids in new_ids]
            elif new_ids is not None:
                view.tables = [
                    np.concatenate((table, np.array(ids, dtype=np.int64))) if ids else table
                    for table, ids in zip(view.tables, new_ids, strict=True)
                ]
            if request_id in all_tokens:
                view.tokens = list(all_tokens[request_id])
            count = counts[i]
            if count is not None:
                # Tokens that the scheduler dropped after a failed synchronous load go here too.
                del view.tokens[view.prompt_length + count :]

    def _batch(self, so: Any) -> list[Row]:
        starts = {n.req_id: n.num_computed_tokens for n in so.scheduled_new_reqs}
        cached = so.scheduled_cached_reqs
        starts.update(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        batch = []
        for name, count in so.num_scheduled_tokens.items():
            if name not in starts or name not in self.views:
                raise BeyondRequestsError(f"{name} is scheduled, but its workers were not told")
            view, end = self.views[name], starts[name] + count
            drafts = so.scheduled_spec_decode_tokens.get(name)
            # Padding (-1) is computed like a draft, and never accepted.
            tokens = [*view.tokens, *drafts] if drafts else view.tokens
            if end > len(tokens):
                raise BeyondTokensError(
                    f"position {end - 1} of {name} is scheduled, but only {len(tokens)} "
                    "tokens are there"
                )
            if end > min(len(table) for table in view.tables) * self.block_size:
                raise BeyondBlocksError(
                    f"position {end - 1} of {name} is scheduled, but only "
                    f"{min(len(table) for table in view.tables)} blocks are there"
                )
            batch.append(Row(name, view, starts[name], end, tokens))
        return batch

    def _metadata(self, batch: list[Row]) -> dict[str, Any]:
        metadata = {}
        for group, names in enumerate(self.groups):
            of_group = compat.attention_metadata(
                [row.start for row in batch],
                [row.end - row.start for row in batch],
                [row.view.tables[group] for row in batch],
                self.block_size,
            )
            metadata.update(dict.fromkeys(names, of_group))
        return metadata

    def _forward(
        self,
        batch: list[Row],
        metadata: dict[str, Any],
        wrong: Callable[[str, Found], None],
    ) -> list[Stream]:
        """Write the KV of the scheduled tokens, and read all of it back; which streams they are of.

        Both are done when the device gets there.
        """
        streams = [self._followed(row.view, row.tokens[: row.end]) for row in batch]
        hooks = compat.calls_layer_hooks(self.connector)
        for group, names in enumerate(self.groups):
            for layer, name in enumerate(names):
                if hooks:
                    self.connector.wait_for_layer_load(name)
                attend = self._attention(batch, streams, group, layer, self._global[name], wrong)
                self.device.launch(self.memory.engine, self.rank, attend)
                if hooks:
                    self.connector.save_kv_layer(name, self.layers[name].kv_cache, metadata[name])
        return streams

    def _attention(
        self,
        batch: list[Row],
        streams: list[Stream],
        group: int,
        layer: int,
        whole: int,
        wrong: Callable[[str, Found], None],
    ) -> Callable[[], None]:
        """What one layer does: write the new KV of each row, and read all of its KV back.

        It knows which blocks it was given, as a kernel does, whatever they are given to since.
        """
        size, epochs = self.block_size, self.memory.epochs
        work = []
        for row, followed in zip(batch, streams, strict=True):
            low = max(0, row.start - self.window + 1) if group and self.window else 0
            table = row.view.tables[group]
            if layer == 0 and self.rank == 0:
                self._note(table, row.start, row.end, followed)
            read = table[low // size : -(-row.end // size)].tolist() if self.device.defers else ()
            work.append((row, followed, table, low, [(b, epochs[b]) for b in read]))

        def attend() -> None:
            for row, followed, table, _, _ in work:
                self._write(layer, whole, table, row.start, row.end, followed)
            for row, followed, table, low, read in work:
                if any(epochs[block] != epoch for block, epoch in read):
                    continue  # taken away meanwhile, and nobody waits for what is read there
                found = self._misread(layer, whole, table, low, row.end, followed)
                if found is not None:
                    wrong(row.request, found)

        return attend

    @staticmethod
    def _sample(row: Row, followed: Stream, misread: bool) -> list[int]:
        """Choose the tokens that follow: one, and those drafts before it that were right."""
        known = len(row.view.tokens)
        if row.end < known:
            return []
        sampled: list[int] = []
        for length in range(known, row.end + 1):
            token = followed.next_token(length)
            if misread:  # the token follows from the KV that was read
                token = token ^ 1
            sampled.append(token)
            if length < row.end and row.tokens[length] != token:
                break
        row.view.tokens.extend(sampled)
        return sampled

    @staticmethod
    def _followed(view: View, tokens: list[int]) -> Stream:
        """The stream of the tokens that the rank has: the request's own, unless it was misled."""
        if tokens == view.stream.tokens[: len(tokens)]:
            return view.stream
        return view.stream.branch(tokens)

    def _write(
        self, layer: int, whole: int, table: Table, start: int, end: int, followed: Stream
    ) -> None:
        """Write ``[start, end)`` of this stage's ``layer``, the model's layer ``whole``."""
        words = self.memory.words[self.rank][layer]
        block, slot = self._slots(table, start, end)
        of_heads = followed.words_of_heads(whole, self.heads)
        new = of_heads[:, start] if end - start == 1 else of_heads[:, start:end].swapaxes(0, 1)
        words[block, :, slot] = new.reshape(*new.shape[:-1], 2, -1)

    def _note(self, table: Table, start: int, end: int, followed: Stream) -> None:
        """The engine's own KV of ``[start, end)`` is to be there, if nobody writes over it."""
        which = start if end - start == 1 else slice(start, end)
        self.memory.computed[self._slots(table, start, end)] = followed.digests[which]

    def _slots(self, table: Table, start: int, end: int) -> tuple[Any, Any]:
        """Blocks and slots in them of ``[start, end)``."""
        if end - start == 1:  # decoding: no need for index arrays
            return table[start // self.block_size], start % self.block_size
        positions = np.arange(start, end)
        return table[positions // self.block_size], positions % self.block_size

    def _misread(
        self, layer: int, whole: int, table: Table, low: int, end: int, followed: Stream
    ) -> Found | None:
        """Read ``[low, end)`` through the block table; the first slot that is wrong, if one is."""
        size = self.block_size
        first = low // size
        blocks = table[first : -(-end // size)]
        got = self.memory.words[self.rank][layer][blocks]
        offset, span = low - first * size, end - low
        read = got.swapaxes(0, 1).reshape(len(self.heads), -1, WORDS)
        read = read[:, offset : offset + span]
        want: Words = followed.words_of_heads(whole, self.heads)[:, low:end]
        if (read == want).all():
            return None
        for local, flat in enumerate(read):
            wrong = np.flatnonzero((flat != want[local]).any(axis=1))
            if len(wrong):
                index = int(wrong[0])
                position = low + index
                block = int(table[position // size])
                actual = tuple(int(w) for w in flat[index])
                return Found(position, block, position % size, whole, self.rank, local, actual)
        return None
