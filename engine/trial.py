"""What a connector hands to vLLM to be added up and passed on, tried out on copies.

vLLM adds up what the ranks and both halves answer, and an object whose methods fail takes the
engine core with it, at a place where nothing says whose object it was. So each is tried before.
"""

from __future__ import annotations

import math
import numbers
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kvconform.engine import compat


@dataclass(frozen=True, slots=True)
class Trial:
    """How it went.

    Attributes:
        empty: there is nothing in it.
        values: numbers by name.
        adds: those of them that double when it is added to its like: counters, not levels.
        problem: the way in which it failed; empty: it did not.
        detail: what was seen then.
        blob: it, pickled; empty where that failed.
    """

    empty: bool = False
    values: Mapping[str, float] = field(default_factory=dict)
    adds: tuple[str, ...] = ()
    problem: str = ""
    detail: str = ""
    blob: bytes = b""


def leaves(value: Any, name: str = "") -> dict[str, float]:
    """The numbers in nested data, by the keys that lead to them."""
    if isinstance(value, bool):
        return {}
    if isinstance(value, numbers.Real):
        return {name: float(value)}
    if isinstance(value, compat.HANDED["statistics"]):  # of a child of a MultiConnector
        return leaves(value.data, name)  # type: ignore[attr-defined]
    if isinstance(value, Mapping):
        found: dict[str, float] = {}
        for key, inner in value.items():
            found |= leaves(inner, f"{name}.{key}" if name else str(key))
        return found
    return {}


def odd(value: Any, name: str = "") -> tuple[str, str] | None:
    """What is no number to be logged, in a line of the log: problem and detail."""
    if isinstance(value, Mapping):
        return next(filter(None, (odd(v, f"{name}.{k}" if name else str(k))
                                  for k, v in value.items())), None)  # fmt: skip
    if not isinstance(value, numbers.Real):
        return "not a number", f"{name or 'reduce()'} is {type(value).__name__}"
    if not math.isfinite(value) or value < 0:
        return "not a number of things", f"{name} is {value}"
    return None


def statistics(stats: Any, raised: Callable[[str, Exception], str]) -> Trial:
    """Statistics; ``raised(method, error)`` says what an error of theirs was."""
    try:
        blob = pickle.dumps(stats)
        one, two = pickle.loads(blob), pickle.loads(blob)
    except Exception as error:
        return Trial(problem="unpicklable", detail=f"{type(error).__name__}: {error}")
    method = "is_empty"
    try:
        empty = bool(one.is_empty())
        method = "to_dict"
        values = leaves(_payload(one))
        method = "aggregate"
        total = one.aggregate(two)
    except Exception as error:
        name = type(error).__name__
        return Trial(problem=f"{name} in {method}", detail=raised(method, error), blob=blob)
    if not isinstance(total, compat.HANDED["statistics"]):
        return Trial(empty, values, problem="aggregate gives no statistics",
                     detail=type(total).__name__, blob=blob)  # fmt: skip
    summed = leaves(_payload(total))
    adds = tuple(k for k, v in values.items() if v and summed.get(k) == 2 * v)
    negative = next((k for k in adds if values[k] < 0), None)
    if negative is not None:
        detail = f"{negative} is {values[negative]:g}"
        return Trial(empty, values, adds, "not a number of things", detail, blob)
    return Trial(empty, values, adds, blob=blob)


def _payload(stats: Any) -> Any:
    return stats.to_dict() if hasattr(stats, "to_dict") else stats.data


def worker_metadata(metadata: Any, raised: Callable[[str, Exception], str]) -> Trial:
    """What a worker tells the scheduler half."""
    try:
        blob = pickle.dumps(metadata)
        one, two = pickle.loads(blob), pickle.loads(blob)
    except Exception as error:
        return Trial(problem="unpicklable", detail=f"{type(error).__name__}: {error}")
    try:
        total = one.aggregate(two)
    except Exception as error:
        name = type(error).__name__
        return Trial(problem=f"{name} in aggregate", detail=raised("aggregate", error), blob=blob)
    if total is None:
        return Trial(problem="aggregate gives nothing", detail="None", blob=blob)
    return Trial(blob=blob)
