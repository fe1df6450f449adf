"""A Hypothesis backend whose examples follow from the seed alone.

Hypothesis mixes constants that it finds in the source of local modules into what it draws; so the
same seed explores differently in a checkout, in an installed wheel, and a second time in one
process, when more modules are loaded. A gate has to explore the same wherever it runs.
"""

from __future__ import annotations

from typing import Any

from hypothesis.internal.conjecture.providers import AVAILABLE_PROVIDERS, HypothesisProvider

NAME = "kvconform"


class SteadyProvider(HypothesisProvider):
    """Hypothesis' own provider, without constants from anywhere."""

    def _maybe_draw_constant(self, *args: Any, **kwargs: Any) -> None:
        return None


AVAILABLE_PROVIDERS[NAME] = SteadyProvider
