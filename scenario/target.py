"""The connector under test, and how it is set up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, get_args

World = Literal["plain", "transport", "mooncake"]
Caches = Literal["whole", "pairs"]
Device = Literal["cpu", "ascend-sim"]
DEVICES: tuple[Device, ...] = get_args(Device)

FEATURES = ("async", "load-failure", "reset", "events", "stats", "worker-meta", "hma", "orders",
            "pd", "pp", "carry", "keeps", "verifies", "children", "siblings", "device")  # fmt: skip
"""What a target may have; most are found by looking at the class or its set-up. Only declared are
those of :data:`DECLARED`:

* ``pp``: it serves pipeline stages;
* ``carry``: a request may come to its decoder with the first output token in the prompt;
* ``keeps``: every full block of a request that ended by itself is found again;
* ``verifies``: it notices when what it has stored was damaged.
"""

DECLARED = frozenset({"pp", "carry", "keeps", "verifies"})


def _no_options() -> Mapping[str, Any]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Target:
    """A connector class by name, with the set-up that it needs.

    Attributes:
        name: what the user called it.
        cls: ``package.module:Class``.
        role: vLLM's ``kv_role``.
        extra: ``kv_connector_extra_config``. Strings may hold ``{run_dir}`` (a fresh folder for
            each run), ``{run}`` (a name of its own for each) and ``{store_blocks}`` (from the
            shape), so that external state is fresh each time; ``{tp}`` (from the shape) and
            ``{role}`` (of the engine) too.
        world: what the target needs simulated. ``plain``: nothing, it talks to the real thing.
            ``transport``: transfers and lookups go through a transport that obeys orders.
            ``mooncake``: the same for Mooncake's transfer engine and ZeroMQ (see ``faults``).
        features: features that its owner declares beside those found by introspection.
        shape: fields of the shape that this target fixes.
        profile: the profile that it is held to unless another is asked for.
        title: one line for lists.
        dialect: how ``kv_transfer_params`` pass from a prefill to a decode engine, for connectors
            that can be on two sides: ``prefill`` is what the prefill request carries, ``decode``
            what is added to what its output said. Strings may hold ``{transfer}`` (a name of its
            own for each request).
        since: first vLLM release that it claims to work with; empty: no bound.
        until: last one.
        caches: what ``register_kv_caches`` gets for a layer: the ``whole`` KV in one tensor, or
            ``pairs`` of K and V, as vllm-ascend has them.
        device: what its KV lies on: the host's memory, or a simulated NPU under the real torch_npu
            (see ``faults/devices``).
        prepare: ``package.module:function`` that is called before the class is imported, or empty.
        install: how the target gets into this environment, for who has not got it.
        scheduler: ``package.module:Class``, the scheduler class that the engines have; empty:
            vLLM's own. A class derived from one of vLLM's is used as it is, as vLLM does with its
            ``scheduler_cls``; any other is mixed into the one that the shape asks for.
        tolerant: ids of rules that are read tolerantly, where upstream has not settled them.
    """

    name: str
    cls: str
    role: str = "kv_both"
    extra: Mapping[str, Any] = field(default_factory=_no_options)
    world: World = "plain"
    features: tuple[str, ...] = ()
    shape: Mapping[str, Any] = field(default_factory=_no_options)
    profile: str = "store"
    title: str = ""
    dialect: Mapping[str, Any] = field(default_factory=_no_options)
    since: str = ""
    until: str = ""
    caches: Caches = "whole"
    device: Device = "cpu"
    prepare: str = ""
    install: str = ""
    scheduler: str = ""
    tolerant: tuple[str, ...] = ()

    @property
    def children(self) -> int:
        """Of a MultiConnector: how many connectors it is composed of."""
        return len(self.extra.get("connectors", ()))

    @property
    def module(self) -> str:
        """The class's module."""
        return self.cls.partition(":")[0]

    @property
    def class_name(self) -> str:
        """The class's name in its module."""
        return self.cls.partition(":")[2]
