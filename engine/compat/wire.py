"""Reading a scheduler's output: what differs between releases in what its workers are told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def new_tokens(new: Any) -> list[int]:
    """All tokens of a request that is new to the workers.

    The second runner gets resumed requests as new ones, with all their tokens. Those of a prompt of
    embeddings are zeros, as the scheduler has them.
    """
    told = getattr(new, "prefill_token_ids", None) or new.prompt_token_ids
    return told if told is not None else [0] * prompt_length(new)


def prompt_length(new: Any) -> int:
    """Tokens in the prompt of a request that is new to the workers."""
    prompt = new.prompt_token_ids if new.prompt_token_ids is not None else new.prompt_embeds
    return len(prompt)


def resumed(cached: Any) -> set[str]:
    """Known requests whose block table is a new one."""
    if hasattr(cached, "resumed_req_ids"):
        return cached.resumed_req_ids
    flags = zip(cached.req_ids, cached.resumed_from_preemption, strict=True)  # 0.11.0
    return {name for name, flag in flags if flag}


def all_tokens(cached: Any) -> Mapping[str, Sequence[int]]:
    """All tokens of known requests that the workers may have lost sight of."""
    return getattr(cached, "all_token_ids", {})


def output_counts(cached: Any) -> Sequence[int | None]:
    """Per known request, how many output tokens are valid; None where that is not said (0.11.0)."""
    return getattr(cached, "num_output_tokens", [None] * len(cached.req_ids))


def preempted(scheduler_output: Any) -> set[str]:
    """Requests that were preempted since the last step; not said until 0.11."""
    return set(getattr(scheduler_output, "preempted_req_ids", None) or ())


def common_prefix_blocks(scheduler_output: Any) -> list[int]:
    """Per KV group, leading blocks that all scheduled requests are said to share (until 0.27)."""
    return list(getattr(scheduler_output, "num_common_prefix_blocks", None) or ())
