"""What a hook of the scheduler half must leave alone: its request, and the scheduler's output."""

from __future__ import annotations

from typing import Any

from kvconform.engine import compat

_STATE = ("status", "num_computed_tokens", "num_tokens", "num_prompt_tokens", "block hashes",
          "max_tokens", "priority")  # fmt: skip
"""What a connector must leave alone in a request."""


def state_of(request: Any) -> tuple[Any, ...]:
    """The part of a request that is the scheduler's."""
    return (
        request.status.name, request.num_computed_tokens, request.num_tokens,
        request.num_prompt_tokens, len(request.block_hashes), request.max_tokens, request.priority,
    )  # fmt: skip


def shape_of(so: Any) -> Any:
    """What build_connector_meta must leave alone in a scheduler's output (ids to zero excepted)."""
    cached = so.scheduled_cached_reqs
    return (
        dict(so.num_scheduled_tokens),
        so.total_num_scheduled_tokens,
        set(so.finished_req_ids),
        [(n.req_id, tuple(map(tuple, n.block_ids)), n.num_computed_tokens,
          tuple(n.prompt_token_ids or ()))
         for n in so.scheduled_new_reqs],
        set(compat.resumed(cached)),
        [len(tokens) for tokens in cached.new_token_ids],
        list(compat.output_counts(cached)),
        {name: len(tokens) for name, tokens in compat.all_tokens(cached).items()},
        dict(so.scheduled_spec_decode_tokens),
        [(name, ids and tuple(map(tuple, ids)), computed) for name, ids, computed in
         zip(cached.req_ids, cached.new_block_ids, cached.num_computed_tokens, strict=True)],
        compat.preempted(so),
    )  # fmt: skip


class Watched:
    """One connector's requests, before and after its hooks."""

    def __init__(self) -> None:
        self._was: tuple[Any, ...] = ()

    def remember(self, request: Any, *_: Any) -> None:
        """A hook is about to be called with this request."""
        self._was = state_of(request)

    def changed(self, request: Any) -> str | None:
        """What the hook has changed in it, in words."""
        now = state_of(request)
        if now == self._was:
            return None
        pairs = zip(_STATE, self._was, now, strict=True)
        changed = [f"{name} from {a} to {b}" for name, a, b in pairs if a != b]
        return f"{request.request_id}: {', '.join(changed)}"
