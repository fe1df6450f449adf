"""Hypothesis strategies of the tests: any scenario, however senseless."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from kvconform.scenario.actions import (
    Abort,
    Action,
    Arrive,
    Busy,
    Corrupt,
    Fail,
    Hold,
    Redeploy,
    Release,
    Reset,
    Restart,
    Step,
)
from kvconform.scenario.prompt import Prompt
from kvconform.scenario.scenario import Scenario
from kvconform.scenario.shape import Shape

_small = st.integers(0, 3)
_rank = st.none() | st.integers(0, 3)


def prompts() -> st.SearchStrategy[Prompt]:
    return st.builds(Prompt, _small, st.integers(1, 80), st.integers(0, 20))


def actions() -> st.SearchStrategy[Action]:
    kinds: list[st.SearchStrategy[Any]] = [
        st.builds(Arrive, prompts(), st.integers(0, 9), st.sampled_from((None, "a", "b")), _small),
        st.builds(Abort, st.integers(0, 9), st.booleans()),
        st.builds(Step, st.integers(1, 6), _small),
        st.builds(Hold, st.sampled_from(("load", "save", "any")), _rank),
        st.builds(Release, st.none() | st.integers(0, 9)),
        st.builds(Busy, st.integers(1, 5)),
        st.builds(Arrive, prompts(), media=st.sampled_from((None, "x")), media_at=_small),
        st.builds(Arrive, prompts(), embeds=st.just("x"), adapter=st.just("y"), version=_small),
        st.builds(Fail, st.integers(1, 3), st.sampled_from(("all", "first", "torn")), _rank),
        st.builds(Corrupt, st.integers(1, 3), _rank),
        st.builds(Restart, _small, st.booleans()),
        st.builds(
            Redeploy,
            st.sampled_from(("", "b")),
            st.sampled_from((0, 8)),
            st.sampled_from((0, 1, 2)),
        ),
        st.builds(Reset, st.booleans(), st.booleans(), _small),
    ]
    return st.one_of(kinds)


def shapes() -> st.SearchStrategy[Shape]:
    return st.builds(
        Shape,
        num_blocks=st.sampled_from((6, 10, 64)),
        store_blocks=st.sampled_from((1, 4, 256)),
        tp=st.integers(1, 2),
        engines=st.integers(1, 2),
        max_num_seqs=st.sampled_from((1, 2, 8)),
        max_num_batched_tokens=st.sampled_from((16, 64)),
        async_scheduling=st.booleans(),
        prefix_caching=st.booleans(),
        load_failure_policy=st.sampled_from(("recompute", "fail")),
    )


def scenarios() -> st.SearchStrategy[Scenario]:
    return st.builds(Scenario, shapes(), st.lists(actions(), max_size=12).map(tuple))
