"""What Hypothesis draws of a run's shape and of its requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from kvconform.scenario.shape import Shape

Draw = Callable[[SearchStrategy[Any]], Any]


def shapes(
    packages: frozenset[str],
    fixed: Mapping[str, Any],
    features: frozenset[str],
    composed: bool = False,
) -> SearchStrategy[Shape]:
    """Shapes for a run with these fault packages; ``fixed`` fields are not drawn.

    ``features`` are the target's: pipeline stages only where it claims ``pp``, routers that carry
    the first token over only where it claims ``carry``. What the installed vLLM does not have is
    not drawn. ``composed``: the target is never alone.
    """
    from kvconform.engine import compat  # needs vLLM: not at import

    def had(field: str, *values: str) -> SearchStrategy[str]:
        return st.sampled_from([v for v in values if compat.supports(field, v)])

    @st.composite
    def draw_shape(draw: Draw) -> Shape:
        tight = "tight-pool" in packages and draw(st.booleans())
        apart = "handover" in packages and draw(st.booleans())
        apart = fixed.get("topology", "pd" if apart else "store") == "pd"
        pp = draw(st.sampled_from((1, 1, 1, 2))) if "pp" in features else 1
        fields: dict[str, Any] = {
            "num_blocks": draw(st.integers(8, 14)) if tight else 64,
            "store_blocks": draw(st.sampled_from((4, 8, 256))) if tight else 256,
            "tp": draw(st.sampled_from((1, 1, 1, 2, 2, 4))),
            "pp": pp,
            "topology": "pd" if apart else "store",
            "carry": apart and "carry" in features and draw(st.booleans()),
            "engines": draw(st.sampled_from((2, 2, 3) if apart else (1, 1, 2))),
            "max_num_seqs": draw(st.sampled_from((8, 8, 2))),
            "max_num_batched_tokens": draw(st.sampled_from((64, 64, 24, 128))),
            # vLLM's first runner keeps the pipeline full instead of running ahead of itself.
            "async_scheduling": pp == 1 and draw(st.booleans()),
            "policy": draw(had("policy", "fcfs", "fcfs", "priority")),
            "runner": draw(had("runner", "v1", "v1", "v2")),
            "prefix_caching": draw(st.sampled_from((True, True, True, False))),
            "load_failure_policy": draw(had("load_failure_policy", "recompute", "fail")),
        }
        if composed:
            fields["beside"] = draw(st.sampled_from(("before", "after")))
        return Shape(**(fields | dict(fixed)))

    return draw_shape()


def lengths() -> SearchStrategy[int]:
    """Prompt lengths in tokens, mostly at the edges of blocks of 16."""
    edges = st.builds(
        lambda blocks, off: max(1, 16 * blocks + off),
        st.integers(1, 4),
        st.sampled_from((0, 1, -1, 8)),
    )
    return st.one_of(edges, edges, st.integers(1, 70))


def priorities() -> SearchStrategy[int]:
    """Priorities of requests; the lower, the sooner."""
    return st.sampled_from((0, 0, 1, -1))


def stops() -> SearchStrategy[int | None]:
    """Which output token, if any, is a stop token."""
    return st.sampled_from((None, None, None, 1, 2))
