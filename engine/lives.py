"""Engines that die and start anew, over a world that outlives them."""

from __future__ import annotations

import dataclasses
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvconform.engine import compat
from kvconform.engine.engine import Engine, HaltedError
from kvconform.engine.recorder import ESCAPING
from kvconform.scenario.errors import UsageError
from kvconform.scenario.trace import Event, Kind

if TYPE_CHECKING:
    from kvconform.engine.cluster import Cluster


def restart(cluster: Cluster, index: int, clean: bool) -> None:
    """An engine dies, and starts anew; ``clean``: its hooks hear of it.

    Raises:
        HaltedError: it did not start again, or its shutdown raised.
    """
    old = cluster.engines[index]
    lost, orphans = old.live(), _bury(cluster, old, clean)
    cluster.trace.emit(
        Event(
            Kind.RESTARTED, index, old.step_number, None, None,
            {"lost": lost, "clean": clean, "remembers": cluster.world.remembers,
             "orphans": orphans},
        )
    )  # fmt: skip
    _revive(cluster, old, old.life.model)


def redeploy(cluster: Cluster, model: str, block_size: int, tp: int) -> None:
    """All engines are shut down, and start anew with another model or in another layout.

    What the target fixes of its shape stays as it is.

    Raises:
        HaltedError: one did not start again, or its shutdown raised.
    """
    former = list(cluster.engines)
    for old in former:
        _bury(cluster, old, clean=True)
    wanted = {"block_size": block_size, "tp": tp}
    changes: dict[str, Any] = {
        name: value for name, value in wanted.items() if value and name not in cluster.target.shape
    }
    cluster.shape = dataclasses.replace(cluster.shape, **changes)
    cluster.trace.emit(
        Event(
            Kind.REDEPLOYED, -1, 0, None, None,
            {"model": model, "block_size": cluster.shape.block_size, "tp": cluster.shape.tp},
        )
    )  # fmt: skip
    for old in former:
        _revive(cluster, old, model)


def _bury(cluster: Cluster, old: Engine, clean: bool) -> int:
    """An engine is no more; how much it kept outside for nobody now."""
    if clean:
        try:
            old.shutdown()
        except ESCAPING as error:  # the recorder of hooks has told of it
            raise HaltedError from error
    cluster.former.append(old)
    cluster.device.died(old.index)
    return cluster.world.died(old.index)


def _revive(cluster: Cluster, old: Engine, model: str) -> None:
    """An engine starts anew in the place of one that is no more."""
    life = compat.Life(old.life.number + 1, model)
    try:
        cluster.engines[old.index] = cluster.make(old.index, life, old.step_number)
    except ESCAPING as error:
        if isinstance(error, UsageError) or _is_ours(error):
            raise
        as_before = (cluster.shape, model) == (old.shape, old.life.model)
        kind = Kind.REFUSED if is_refusal(error) and not as_before else Kind.STAYED_DOWN
        data = {"detail": in_words(error), "error": type(error).__name__}
        cluster.trace.emit(Event(kind, old.index, old.step_number, None, None, data))
        raise HaltedError from error


def is_refusal(error: BaseException) -> bool:
    """A connector refuses what it does not serve with a ValueError."""
    return isinstance(error, ValueError | NotImplementedError)


def _is_ours(error: BaseException) -> bool:
    """Whether it was raised by the engine or its world, and not by what they call."""
    frames = [frame.f_globals["__name__"] for frame, _ in traceback.walk_tb(error.__traceback__)]
    return frames[-1].startswith(("kvconform.engine", "kvconform.faults"))


def in_words(error: BaseException) -> str:
    """An exception, and where it was raised."""
    line = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({Path(line.filename).name}, line {line.lineno})"
