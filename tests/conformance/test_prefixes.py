"""Shared prefixes, by identity."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kvconform.conformance.prefixes import Prefixes
from kvconform.scenario.identity import Identity

IDENTITIES = st.sampled_from((Identity(), Identity("a"), Identity("b")))
PROMPTS = st.lists(st.integers(3, 5), min_size=1, max_size=6).map(tuple)


def common(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    return next(
        (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )


@given(st.lists(st.tuples(PROMPTS, IDENTITIES)), PROMPTS, IDENTITIES)
def test_it_is_the_longest_prefix_shared_with_any_earlier_prompt(
    earlier: list[tuple[tuple[int, ...], Identity]], tokens: tuple[int, ...], identity: Identity
) -> None:
    prefixes = Prefixes()
    for prompt, other in earlier:
        prefixes.add(prompt, other)
    known = max((common(tokens, p) for p, i in earlier if i == identity), default=0)
    foreign = max((common(tokens, p) for p, i in earlier if i != identity), default=0)
    assert prefixes.shared(tokens, identity) == (known, foreign)
