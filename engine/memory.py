"""The KV memory of one engine: tensors of every rank, and who answers for what is in them.

A block is poisoned when it goes to a new owner, or all are when the prefix cache is emptied, each
time after the workers' ``handle_preemptions``, which may still save it; never when it is freed,
because a free block with a hash is a valid local hit. Costs are linear in the blocks touched, never
in the size of the pool (but for the rare reset).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kvconform.engine.compat.layout import HEAD_SIZE, HEADS
from kvconform.engine.device import Device
from kvconform.engine.oracle import WORDS, Words, poison, words_of
from kvconform.scenario.shape import Shape
from kvconform.scenario.target import Caches


@dataclass(slots=True)
class Promise:
    """An external load that the connector answers for.

    Attributes:
        request: who was admitted with it.
        low: first promised position (tokens).
        high: end of the promised positions.
        is_async: whether the request waits for it.
        blocks: the blocks promised, in order.
        failed: blocks that the connector reported as failed since.
    """

    request: str
    low: int
    high: int
    is_async: bool
    blocks: tuple[int, ...]
    failed: set[int] = field(default_factory=set)


class Memory:
    """The KV tensors of each rank and layer, float32, laid out as the target expects them.

    ``whole``: one tensor ``[num_blocks, heads, block_size, 2 * HEAD_SIZE]``. ``pairs``: a tuple of
    K and V, each ``[num_blocks, block_size, heads, HEAD_SIZE]``, as vllm-ascend has them. A rank of
    a pipeline stage has that stage's layers only. As vLLM lays them out, the first layers of all KV
    groups share their memory, and so on: a block is one group's at a time.

    Attributes:
        num_layers: layers of the whole model.
        words: per rank, the same memory as 64-bit words, shape
            ``[layers, num_blocks, heads, block_size, 2, WORDS // 2]``: K, then V; the layers are
            those of one group.
        tensors: per rank, per layer of a group, what ``register_kv_caches`` gets.
        epochs: per block, how often it was handed to a new owner.
        owners: per block, the request that it was last handed to.
        promises: per block, the load that has to fill it.
    """

    def __init__(
        self,
        engine: int,
        shape: Shape,
        layers: int,
        caches: Caches = "whole",
        device: Device | None = None,
    ) -> None:
        self.engine = engine
        self.shape = shape
        self.heads = max(1, HEADS // shape.tp)
        self.num_layers = layers
        layers //= shape.pp * shape.groups
        dims = (layers, shape.num_blocks, self.heads, shape.block_size)
        self.words: list[Words] = []
        self.tensors: list[list[Any]] = []
        self.device = device or Device()
        for rank in range(shape.ranks):
            if caches == "whole":
                whole, parts = self.device.allocate(engine, rank, (*dims, 2 * HEAD_SIZE))
                self.words.append(whole.view(np.uint64).reshape(*dims, 2, WORDS // 2))
                self.tensors.append(parts)
            else:
                shape_of_one = (shape.num_blocks, shape.block_size, self.heads, HEAD_SIZE)
                flat, parts = self.device.allocate(engine, rank, (2 * layers, *shape_of_one))
                pairs = flat.view(np.uint64).reshape(layers, 2, *shape_of_one[:-1], WORDS // 2)
                # Layer, K or V, block, slot, head, word: the same dimensions in another order.
                self.words.append(pairs.transpose(0, 2, 4, 3, 1, 5))
                self.tensors.append(list(zip(parts[::2], parts[1::2], strict=True)))
        self.epochs = [0] * shape.num_blocks
        self.owners: list[str | None] = [None] * shape.num_blocks
        self.promises: dict[int, Promise] = {}
        self._handed: list[tuple[list[int], str | None]] = []
        self.computed: Words = np.zeros((shape.num_blocks, shape.block_size), dtype=np.uint64)
        """Per slot, the digest that the engine itself last wrote there; 0 for poison."""

    def head(self, rank: int, local: int) -> int:
        """The global KV head behind a rank's local head (replicated when tp exceeds them)."""
        tp = self.shape.tp
        return rank % tp * HEADS // tp + local

    def hand_over(self, blocks: Iterable[int], owner: str | None) -> None:
        """These blocks go to someone else; whatever is in them will be poison to him.

        They change hands with :meth:`apply`: workers may still save them until then.
        """
        blocks = [b for b in blocks if b]  # block 0 is vLLM's null block
        for block in blocks:
            self.promises.pop(block, None)
        if blocks:
            self._handed.append((blocks, owner))

    def apply(self) -> None:
        """The workers have heard of preemptions: the blocks handed over change hands now."""
        handed, self._handed = self._handed, []
        for blocks, owner in handed:
            self._take(blocks, owner)

    def _take(self, blocks: list[int], owner: str | None) -> None:
        for block in blocks:
            self.epochs[block] += 1
            self.owners[block] = owner
        self.computed[blocks] = 0
        if self.device.defers:
            # What still reads or writes a block may be right to do so, for what its new owner does
            # comes behind it on the device. The pattern would not.
            blocks = [b for b in blocks if not self.device.touches(self._parts(b))]
        pattern = poison(self.engine, blocks, [self.epochs[b] for b in blocks])
        for words in self.words:
            words[:, blocks] = pattern[None, :, None, None, None, None]

    def _parts(self, block: int) -> Iterator[Any]:
        """The memory of a block: tensors of every rank and layer."""
        for layers in self.tensors:
            for layer in layers:
                for part in layer if isinstance(layer, tuple) else (layer,):
                    yield part[block]

    def promise(self, promise: Promise) -> None:
        """From now on the connector answers for these blocks."""
        for block in promise.blocks:
            self.promises[block] = promise

    def failed(self, blocks: Iterable[int]) -> None:
        """The connector reported these blocks as failed."""
        for block in blocks:
            promise = self.promises.get(block)
            if promise is not None:
                promise.failed.add(block)

    def failed_request(self, request: str) -> None:
        """The connector reported the whole load of this request as failed."""
        for promise in self.promises.values():
            if promise.request == request:
                promise.failed.update(promise.blocks)

    def empty(self) -> None:
        """The prefix cache was emptied: nothing old may be read from any block."""
        self.hand_over(range(1, self.shape.num_blocks), None)

    def stale(self, blocks: Sequence[int], epochs: Sequence[int]) -> list[int]:
        """Those of ``blocks`` that changed hands since ``epochs`` were taken."""
        return [b for b, e in zip(blocks, epochs, strict=True) if self.epochs[b] != e]

    def unwritten(self, rank: int, blocks: Sequence[int]) -> list[int]:
        """Those of ``blocks`` of which a slot has not been written since they changed hands."""
        if not blocks:
            return []
        pattern = poison(self.engine, blocks, [self.epochs[b] for b in blocks])
        # One head tells of all, but a block is written in the layers of its KV group only.
        words = self.words[rank][:, :, 0, :, 0, 0][:, list(blocks)]
        unwritten = (words == pattern[:, None]).all(axis=0).any(axis=1)
        return [block for block, lacks in zip(blocks, unwritten, strict=True) if lacks]

    def engine_wrote(self, block: int, slot: int, layer: int, head: int) -> Words:
        """What the slot would hold had no connector written to it."""
        digest = self.computed[block, slot]
        if digest:
            return words_of(np.array([digest], dtype=np.uint64), layer, head)[0]
        return np.repeat(poison(self.engine, [block], [self.epochs[block]]), WORDS)
