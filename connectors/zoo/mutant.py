"""What a member of the zoo is: a wrong connector, or a scheduler; most from a real defect."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

Half = Literal["scheduler half", "worker half", "composition", "vLLM"]


def _nothing() -> Mapping[str, Any]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Mutant:
    """One mistake.

    Attributes:
        name: as in ``zoo:NAME``.
        cls: ``module:Class`` below this package; one of ``schedulers`` is a scheduler, and the
            connector is the right one.
        bug: the public defect that it is from; empty: none is known, and it is a mistake that is
            easily made.
        source: where that was reported.
        says: the mistake in a sentence.
        breaks: the invariants that the defect breaks (see ``conformance/invariants.py``).
        rules: of a wrong scheduler: the rules whose clause it breaks.
        side: who makes it; vLLM over a connector: that vLLM does not get on with it.
        shape: fields of the shape that it needs to show.
        faults: packages that it needs; empty: any.
        extra: more of the connector's config.
        keeps: it is a mutant of a connector that keeps what has ended.
        rare: why it takes a lucky history to see it; empty: it does not.
        until: last vLLM on which it is wrong; empty: it still is.
        device: what its KV has to lie on.
        children: of a composition: the class of each child; ``right`` is the reference connector.
    """

    name: str
    cls: str
    says: str
    breaks: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()
    side: Half = "composition"
    bug: str = ""
    source: str = ""
    shape: Mapping[str, Any] = field(default_factory=_nothing)
    faults: tuple[str, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=_nothing)
    keeps: bool = True
    rare: str = ""
    until: str = ""
    device: Literal["cpu", "ascend-sim"] = "cpu"
    children: tuple[str, ...] = ()

    @property
    def is_scheduler(self) -> bool:
        """Whether it stands in for vLLM's scheduler."""
        return self.cls.startswith("schedulers:")
