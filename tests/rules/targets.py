"""The wrong connectors as targets."""

from __future__ import annotations

import dataclasses

from kvconform.connectors.targets.resolve import resolve
from kvconform.scenario.target import Target

ASCEND = resolve("ascend")


def wrong_target(cls: type, keeps: bool = True) -> Target:
    """The reference connector's set-up with another class."""
    return dataclasses.replace(
        ASCEND, name=cls.__name__, cls=f"{cls.__module__}:{cls.__name__}", title="",
        features=tuple(f for f in ASCEND.features if keeps or f != "keeps"),
    )  # fmt: skip
