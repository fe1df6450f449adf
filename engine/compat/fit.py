"""Signatures of the installed vLLM, and calls that fit them."""

from __future__ import annotations

import functools
import inspect
from typing import Any


@functools.cache
def parameters(function: Any) -> frozenset[str]:
    """Names of what a function, or a class' constructor, takes."""
    return frozenset(inspect.signature(function).parameters)


def fitting(function: Any, **kwargs: Any) -> dict[str, Any]:
    """The keyword arguments that ``function`` of the installed vLLM takes."""
    taken = parameters(function)
    return {k: v for k, v in kwargs.items() if k in taken}


@functools.cache
def required(function: Any) -> frozenset[str]:
    """Names of what it does not do without."""
    taken = inspect.signature(function).parameters.values()
    return frozenset(p.name for p in taken if p.default is p.empty)
