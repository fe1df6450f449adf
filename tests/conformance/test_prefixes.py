"""Shared prefixes, by identity."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kvconform.conformance.prefixes import Prefixes
from kvconform.scenario.identity import Identity
from kvconform.scenario.prompt import follow

IDENTITIES = st.sampled_from(
    (
        Identity(),
        Identity("a"),
        Identity("b"),
        Identity("a", "x"),
        Identity(media="x"),
        Identity(media="x", at=2),
        Identity("a", media="y", at=2),
        Identity(model="m"),
    )
)
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

    def same(prompt: tuple[int, ...], other: Identity) -> int:
        """Leading positions of the same tokens, and the same KV by what a right engine computes."""
        count = common(tokens, prompt)
        mine, theirs = (follow(tokens[:count], i, 0)[1] for i in (identity, other))
        return next((k for k, (x, y) in enumerate(zip(mine, theirs, strict=True)) if x != y), count)

    known = max((same(p, i) for p, i in earlier), default=0)
    foreign: dict[str, int] = {}
    for prompt, other in earlier:
        count, part = common(tokens, prompt), identity.differs(other)
        if part is not None and count > same(prompt, other):
            foreign[part] = max(count, foreign.get(part, 0))
    assert prefixes.shared(tokens, identity) == (known, foreign)
