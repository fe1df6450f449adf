"""The fixed parameters of one run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Topology = Literal["store", "pd"]
Beside = Literal["none", "before", "after"]


def takes_drafts(runner: str, pp: int, async_scheduling: bool) -> bool:
    """Whether speculative decoding is simulated for such an engine.

    With async scheduling, or more stages, a runner corrects by itself what the scheduler assumed of
    drafts; the second runner has a drafter's part of its own.
    """
    return runner == "v1" and pp == 1 and not async_scheduling


@dataclass(frozen=True, slots=True)
class Shape:
    """What a run is built of, before anything happens in it.

    Attributes:
        block_size: tokens per KV block.
        num_blocks: blocks in each engine's pool, the null block included.
        store_blocks: capacity, in blocks, of the store that the world simulates.
        tp: tensor-parallel ranks, each with a worker half of its own.
        pp: pipeline stages; each holds its own layers, on ``tp`` ranks.
        topology: ``store``: engines over one store. ``pd``: engine 0 prefills, the others decode,
            and a router hands requests over.
        engines: how many engines.
        max_num_seqs: requests that may run at once in an engine.
        max_num_batched_tokens: token budget of a step; below the prompt length, prefill is chunked.
        max_model_len: tokens that a request may reach.
        async_scheduling: use vLLM's AsyncScheduler and a two-deep queue of steps.
        policy: vLLM's scheduling policy; ``priority`` lets a late request preempt earlier ones.
        runner: whose shape the scheduler's output has, and whose hook order the workers follow:
            that of vLLM's model runner ``v1`` or ``v2``.
        prefix_caching: whether vLLM's own prefix cache is on.
        load_failure_policy: vLLM's ``kv_load_failure_policy``.
        carry: the router appends the first output token to the prompt that it hands over.
        drafts: tokens that a drafter proposes for each request in a step (speculative decoding).
        lookahead: whether the drafter is a model, for which vLLM keeps as many slots more.
        window: 0, or the width in tokens of a second KV group with sliding-window attention (only
            for connectors that support several groups).
        beside: whether the target is alone, or a child of vLLM's MultiConnector: ``before`` a
            companion, so that it is asked first, or ``after`` it.
    """

    block_size: int = 16
    num_blocks: int = 64
    store_blocks: int = 256
    tp: int = 1
    pp: int = 1
    topology: Topology = "store"
    engines: int = 1
    max_num_seqs: int = 8
    max_num_batched_tokens: int = 64
    max_model_len: int = 512
    async_scheduling: bool = False
    policy: Literal["fcfs", "priority"] = "fcfs"
    runner: Literal["v1", "v2"] = "v1"
    prefix_caching: bool = True
    load_failure_policy: Literal["recompute", "fail"] = "recompute"
    carry: bool = False
    drafts: int = 0
    lookahead: bool = False
    window: int = 0
    beside: Beside = "none"

    def __post_init__(self) -> None:
        for name, low in (
            ("block_size", 1),
            ("num_blocks", 2),
            ("store_blocks", 1),
            ("tp", 1),
            ("pp", 1),
            ("engines", 1),
            ("max_num_seqs", 1),
            ("max_num_batched_tokens", 1),
            ("max_model_len", 2),
        ):
            if getattr(self, name) < low:
                raise ValueError(f"{name} must be at least {low}, got {getattr(self, name)}")
        if self.drafts < 0 or (self.lookahead and not self.drafts):
            raise ValueError("drafts must not be negative, and lookahead needs some")
        if self.drafts and not takes_drafts(self.runner, self.pp, self.async_scheduling):
            raise ValueError("drafts go with runner v1, one stage, and without async_scheduling")
        if self.max_num_batched_tokens < max(self.max_num_seqs, 1 + 2 * self.drafts):
            raise ValueError(
                "max_num_batched_tokens must not be below max_num_seqs, nor below 1 + 2 * drafts"
            )
        if self.topology == "pd" and self.engines < 2:
            raise ValueError("topology pd needs at least 2 engines: one prefills, one decodes")

    def fixed(self, fields: Mapping[str, Any]) -> Shape:
        """This shape with some fields fixed; as many engines as the topology needs.

        Raises:
            ValueError: the fields contradict each other.
        """
        more = dict(fields)
        if more.get("topology", self.topology) == "pd" and "engines" not in more:
            more["engines"] = max(2, self.engines)
        return dataclasses.replace(self, **more)

    @property
    def ranks(self) -> int:
        """Worker halves of an engine."""
        return self.tp * self.pp

    @property
    def groups(self) -> int:
        """KV groups."""
        return 2 if self.window else 1

    def fits(self, num_tokens: int) -> bool:
        """Whether a request of ``num_tokens`` in all can ever run alone in this pool.

        A second KV group takes blocks of the same pool; a window's blocks are given back as it
        moves on, but may all be held at once while the prompt is admitted. Drafts and lookahead
        take slots behind the last token.
        """
        slots = num_tokens + self.drafts * (2 if self.lookahead else 1)
        blocks = -(-slots // self.block_size) * self.groups
        return num_tokens <= self.max_model_len and blocks <= self.num_blocks - 1
