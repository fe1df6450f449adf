"""Whose fault is wrong KV: the last writer decides.

A connector that wrote and reported what it promised is not at fault. Neither is one that reported
the load as failed: then vLLM used what it had been told not to.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from kvconform.engine.memory import Memory
from kvconform.engine.oracle import ROTTEN, TORN, UNFILLED, Stream, Words, unpoison


@dataclass(frozen=True, slots=True)
class Found:
    """A slot that attention read and that does not hold what it must."""

    position: int
    block: int
    slot: int
    layer: int
    rank: int
    local_head: int
    actual: tuple[int, ...]
    """The words that were read."""


@dataclass(frozen=True, slots=True)
class Blame:
    """Who owes an explanation, and for what.

    Attributes:
        connector: whether the connector owes it (else vLLM).
        kind: ``never-loaded``, ``never-computed``, ``other-tenant``, ``other-media``,
            ``other-embeds``, ``other-model``, ``other-tokens``, ``other-rank``, ``torn``,
            ``rotten``, ``unfilled``, ``zeros``, ``garbage`` for a load that was promised;
            ``overwritten`` for a block that was not the connector's to write; ``failed-load-used``,
            ``stale-block`` and ``null-block`` for vLLM.
        text: what was found there.
    """

    connector: bool
    kind: str
    text: str


_OTHER = {
    "tenant": "of another tenant",
    "media": "with another image",
    "embeds": "of other embeddings",
    "model": "of another model",
}


def blame(
    found: Found, memory: Memory, reader: Stream, streams: Iterable[tuple[str, Stream]]
) -> Blame:
    """Decide about one wrong slot.

    Args:
        found: the slot.
        memory: the engine's memory.
        reader: the stream of the request that read it.
        streams: every request of the run with its stream, to recognise foreign KV.
    """
    if not found.block:
        return Blame(False, "null-block", "vLLM's null block: it had given back what is read here")
    head = memory.head(found.rank, found.local_head)
    actual = np.array(found.actual, dtype=np.uint64)
    own = np.array_equal(actual, memory.engine_wrote(found.block, found.slot, found.layer, head))
    promise = memory.promises.get(found.block)
    if (
        promise is not None
        and promise.low <= found.position < promise.high
        and not memory.computed[found.block, found.slot]
    ):
        if found.block in promise.failed:
            return Blame(
                False,
                "failed-load-used",
                f"block {found.block}, whose load for {promise.request} the connector had "
                "reported as failed",
            )
        if own:
            return Blame(
                True,
                "never-loaded",
                f"block {found.block} as it was before the load that {promise.request} was "
                "promised: nothing was written there",
            )
        streams = list(streams)
        promised = dict(streams)[promise.request]
        if promised is not reader and np.array_equal(
            promised.words(found.layer, head)[found.position], actual
        ):
            # The load brought what was promised to the request that it was for. Who else reads the
            # block was given it by vLLM's own prefix cache.
            return Blame(False, "stale-block", f"block {found.block}, loaded for {promise.request}")
        kind, text = recognise(actual, found, memory, reader, streams)
        return Blame(True, kind, text)
    if own:
        owner = memory.owners[found.block]
        return Blame(False, "stale-block", f"block {found.block}, last handed to {owner}")
    _, text = recognise(actual, found, memory, reader, streams)
    return Blame(True, "overwritten", f"block {found.block}, overwritten with {text}")


def recognise(
    actual: Words,
    found: Found,
    memory: Memory,
    reader: Stream,
    streams: Iterable[tuple[str, Stream]],
) -> tuple[str, str]:
    """What foreign KV it is: kind and words."""
    source = unpoison(int(actual[0]))
    if source is not None and np.all(actual == actual[0]):
        engine, block, _ = source
        return (
            "never-computed",
            f"a copy of block {block} of engine {engine} from before its KV was computed",
        )
    if not actual.any():
        return "zeros", "zeros"
    if TORN in actual:
        return "torn", "a block of which only half had arrived"
    if ROTTEN in actual:
        return "rotten", "a block that was damaged where it lay"
    if UNFILLED in actual:
        return "unfilled", "host memory from before the device had filled it"
    head = memory.head(found.rank, found.local_head)
    known = list(streams)
    heads = {memory.head(r, h) for r in range(memory.shape.tp) for h in range(memory.heads)}
    for other_head in sorted(heads, key=lambda h: h != head):  # its own head first
        for layer in range(memory.num_layers):
            for name, stream in known:
                hits = np.flatnonzero((stream.words(layer, other_head) == actual).all(axis=1))
                if not len(hits):
                    continue
                position = int(hits[0])
                what = f"the KV of {name}, position {position}"
                if other_head != head:
                    return "other-rank", f"{what}, of another rank's heads"
                if layer != found.layer:
                    return "other-layer", f"{what}, of another layer"
                upto = position + 1
                foreign = reader.identity.differs(stream.identity)
                if reader.identity == stream.identity and reader.identity.embeds is not None:
                    foreign = "embeds"  # which vLLM has as zeros, whatever they are
                if foreign and stream.tokens[:upto] == reader.tokens[:upto]:
                    return f"other-{foreign}", f"{what}, {_OTHER[foreign]} ({stream.identity})"
                return "other-tokens", what
    return "garbage", "bytes that no request's KV has"
