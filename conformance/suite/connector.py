"""The suite as a class with one attribute."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, ClassVar

import pytest

from kvconform.conformance.suite.found import RULE_IDS, Found, hold
from kvconform.conformance.suite.wanted import Wanted

_NONE: Mapping[str, Any] = MappingProxyType({})

_KINDS: Mapping[str, tuple[type, ...]] = {
    "target": (str,),
    "profile": (str, type(None)),
    "level": (str,),
    "faults": (str,),
    "shape": (str, Mapping),
    "examples": (int,),
    "seed": (int,),
    "role": (str, type(None)),
    "extra": (str, Mapping),
    "known": (str, type(None)),
    "tolerant": (str,),
    "device": (str, type(None)),
    "processes": (int, type(None)),
}
"""The attributes that a subclass may set, and the types that they may have."""

_FIXTURES = ("kvc_found", "kvc_verdict")
_PYTESTS = ("pytestmark",)


class ConnectorConformance:
    """A test for each rule of the contract; a subclass names the connector.

    The check runs once for a class, and once for all classes that ask for the same. Results do not
    depend on the number of processes, xdist's or the check's own.

    A subclass may set the attributes below, and add ``test_…`` methods and names that begin with
    ``_``. Anything else is taken for a mistake: a test that replaces one of ours, or an attribute
    with a typo, would be a check that never runs.

    Attributes:
        target: ``package.module:Class``, a name from ``kvconform list targets``, or a TOML file.
        profile: the profile to hold it to; None: the target's own.
        level: L0 to L4.
        faults: fault packages with commas, ``all`` or ``none``.
        shape: fields of the shape that are not drawn, ``{"tp": 2}`` or ``"tp=2"``.
        examples: runs of L3.
        seed: equal seeds explore equally.
        role: vLLM's ``kv_role``; None: the target's own.
        extra: ``kv_connector_extra_config``, added to the target's own.
        known: a file of known failures.
        tolerant: rules that are read tolerantly, with commas.
        device: what KV lies on, ``cpu`` or ``ascend-sim``; None: as the target says.
        processes: that the target lives in; None: as many as xdist has workers.
    """

    target: ClassVar[str] = ""
    profile: ClassVar[str | None] = None
    level: ClassVar[str] = "L3"
    faults: ClassVar[str] = "all"
    shape: ClassVar[str | Mapping[str, Any]] = ""
    examples: ClassVar[int] = 200
    seed: ClassVar[int] = 1
    role: ClassVar[str | None] = None
    extra: ClassVar[str | Mapping[str, Any]] = _NONE
    known: ClassVar[str | None] = None
    tolerant: ClassVar[str] = ""
    device: ClassVar[str | None] = None
    processes: ClassVar[int | None] = None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for problem in _problems(cls):
            raise TypeError(problem)

    @pytest.mark.parametrize("rule", RULE_IDS)
    def test_rule(self, rule: str, kvc_found: Found) -> None:
        """The target keeps this rule, and the rule was put to the test."""
        hold(kvc_found)

    def test_process_survives(self, kvc_found: Found) -> None:
        """The target took no process down."""
        hold(kvc_found)


_TESTS = tuple(name for name in vars(ConnectorConformance) if name.startswith("test_"))


def wanted(cls: type[ConnectorConformance], workers: int = 1) -> Wanted:
    """The check that a class asks for, in ``workers`` processes unless it says how many."""
    shape, extra = cls.shape, cls.extra
    if isinstance(shape, Mapping):
        shape = ",".join(f"{name}={value}" for name, value in shape.items())
    if isinstance(extra, Mapping):
        extra = json.dumps(dict(extra))
    return Wanted(
        target=cls.target,
        profile=cls.profile,
        level=cls.level,
        faults=cls.faults,
        shape=shape,
        examples=cls.examples,
        seed=cls.seed,
        role=cls.role,
        extra=extra,
        known=cls.known,
        tolerant=cls.tolerant,
        device=cls.device,
        processes=workers if cls.processes is None else cls.processes,
    )


def _problems(cls: type[ConnectorConformance]) -> Iterator[str]:
    """What is wrong with a subclass, a sentence for each."""
    for name in _TESTS:  # also when a class beside ours brings it in
        if getattr(cls, name) is not getattr(ConnectorConformance, name):
            yield (
                f"{cls.__name__} overrides {name} of ConnectorConformance, so its rules would "
                "never be checked: give the method another name."
            )
    for name, value in vars(cls).items():
        if name in _KINDS:
            if not isinstance(value, _KINDS[name]) or isinstance(value, bool):
                kinds = " or ".join(k.__name__ for k in _KINDS[name] if k is not type(None))
                yield f"{cls.__name__}.{name} must be {kinds}, got {value!r}."
        elif name in _FIXTURES:
            yield f"{cls.__name__} overrides the fixture {name} of kvconform: give it another name."
        elif name in ("__init__", "__new__"):
            yield f"{cls.__name__} has {name}, and pytest collects no class that has one."
        elif not (name.startswith("_") or name in _PYTESTS or _is_test(name, value)):
            near = difflib.get_close_matches(name, _KINDS, 1)
            advice = f"did you mean {near[0]}?" if near else f"it has {', '.join(_KINDS)}."
            yield f"{cls.__name__}.{name} is no attribute of ConnectorConformance; {advice}"


def _is_test(name: str, value: object) -> bool:
    return name.startswith("test_") and callable(value)
