"""What Hypothesis draws of a run's shape and of its requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from kvconform.scenario.shape import Shape, takes_drafts

_WINDOWS = (8, 16, 24, 40)
"""Widths in tokens: below a block of 16, one of them, and between blocks."""

Draw = Callable[[SearchStrategy[Any]], Any]


def shapes(
    packages: frozenset[str],
    fixed: Mapping[str, Any],
    features: frozenset[str],
    composed: bool = False,
) -> SearchStrategy[Shape]:
    """Shapes for a run with these fault packages; ``fixed`` fields are not drawn.

    ``features`` are the target's: pipeline stages only where it claims ``pp``, routers that carry
    the first token over only where it claims ``carry``, a second KV group where it has ``hma``.
    What the installed vLLM does not have is not drawn. ``composed``: the target is never alone.
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
        window = fixed.get("window", 0)
        if "hma" in features and "window" not in fixed and compat.supports("window", _WINDOWS[0]):
            window = draw(st.sampled_from((*[0] * 12, *_WINDOWS)))
        size = draw(st.sampled_from((16, 16, 16, 16, 16, 8, 32, 64, 1)))
        size = fixed.get("block_size", size)
        small, large = max(1, 16 // size), max(1, size // 16)  # as many tokens, about
        drafts = draw(st.sampled_from([n for n in (0, 1, 3) if compat.supports("drafts", n)]))
        # The second group takes blocks of the same pool.
        few = draw(st.integers(8, 14)) + (6 if window else 0) if tight else 64
        fields: dict[str, Any] = {
            "block_size": size,
            "num_blocks": few * small,
            "store_blocks": (draw(st.sampled_from((4, 8, 256))) if tight else 256) * small,
            "tp": draw(st.sampled_from((1, 1, 1, 2, 2, 4))),
            "pp": pp,
            "topology": "pd" if apart else "store",
            "carry": apart and "carry" in features and draw(st.booleans()),
            "engines": draw(st.sampled_from((2, 2, 3) if apart else (1, 1, 2))),
            "max_num_seqs": draw(st.sampled_from((8, 8, 2))),
            "max_num_batched_tokens": draw(st.sampled_from((64, 64, 24, 128))) * large,
            # vLLM's first runner keeps the pipeline full instead of running ahead of itself.
            "async_scheduling": pp == 1 and draw(st.booleans()),
            "policy": draw(had("policy", "fcfs", "fcfs", "priority")),
            "runner": draw(had("runner", "v1", "v1", "v2")),
            "drafts": drafts,
            "lookahead": drafts > 0 and draw(st.booleans()),
            "prefix_caching": draw(st.sampled_from((True, True, True, False))),
            "load_failure_policy": draw(had("load_failure_policy", "recompute", "fail")),
            "window": window,
        }
        if composed:
            fields["beside"] = draw(st.sampled_from(("before", "after")))
        fields |= dict(fixed)
        plain = takes_drafts(fields["runner"], fields["pp"], fields["async_scheduling"])
        if not plain and "drafts" not in fixed:
            fields |= {"drafts": 0, "lookahead": False}
        return Shape(**fields)

    return draw_shape()


def lengths(block_size: int) -> SearchStrategy[int]:
    """Prompt lengths in tokens, mostly at the edges of blocks."""
    edges = st.builds(
        lambda blocks, off: max(1, block_size * blocks + off),
        st.integers(1, max(4, 64 // block_size)),
        st.sampled_from((0, 1, -1, block_size // 2)),
    )
    return st.one_of(edges, edges, st.integers(1, max(70, 4 * block_size + 6)))


def priorities() -> SearchStrategy[int]:
    """Priorities of requests; the lower, the sooner."""
    return st.sampled_from((0, 0, 1, -1))


def stops() -> SearchStrategy[int | None]:
    """Which output token, if any, is a stop token."""
    return st.sampled_from((None, None, None, 1, 2))
